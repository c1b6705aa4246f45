"""What a TPUEstimator is told of its embeddings, and whether it can have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_tpu_trainer.estimator.tpu._run_config import RunConfig
from tfx_tpu_trainer.estimator.tpu.cores.layout import InputMode
from tfx_tpu_trainer.estimator.tpu.embedding import tf_private
from tfx_tpu_trainer.estimator.tpu.embedding.configs import FeatureConfig, TableConfig
from tfx_tpu_trainer.estimator.tpu.embedding.optimization_parameters import (
    AdagradParameters,
    AdamParameters,
    FtrlParameters,
    MomentumParameters,
    OptimizationParameters,
    ProximalAdagradParameters,
    RMSPropParameters,
    StochasticGradientDescentParameters,
)

SUPPORTED_PARAMETERS = (
    ProximalAdagradParameters,
    AdagradParameters,
    AdamParameters,
    FtrlParameters,
    StochasticGradientDescentParameters,
    MomentumParameters,
    RMSPropParameters,
)
PARTITION_STRATEGIES = ("div", "mod")
_INPUT_MODES = (InputMode.PER_HOST_V1, InputMode.PER_HOST_V2)


class _Fields(NamedTuple):
    feature_columns: Sequence[Any] | None
    tensor_core_feature_columns: Sequence[Any] | None
    optimization_parameters: OptimizationParameters | None
    clipping_limit: float | None
    pipeline_execution_with_tensor_core: bool
    experimental_gradient_multiplier_fn: Callable[[tf.Tensor], Any] | None
    feature_to_config_dict: Mapping[str, FeatureConfig] | None
    table_to_config_dict: Mapping[str, TableConfig] | None
    partition_strategy: str
    profile_data_directory: str | None
    sparse_core_embedding_config: Any


class EmbeddingConfigSpec(_Fields):
    """The embeddings of a TPUEstimator, and the optimizer that trains their tables.

    Mirrors `tf.compat.v1.estimator.tpu.experimental.EmbeddingConfigSpec`. On cores the tables of
    these columns are no variables of the model: ids are looked up before it, and the model's
    optimizer does not train them. With `use_tpu=False` the spec is ignored, and the columns are
    ordinary embedding columns.

    Of the fields, `feature_columns` are those without the columns of the tensor core, which are
    in `tensor_core_feature_columns`.

    Example:
    ```python
    word = tf.feature_column.categorical_column_with_identity("word", 1000)
    columns = [tf.compat.v1.tpu.experimental.embedding_column(word, 16)]
    spec = EmbeddingConfigSpec(columns, AdagradParameters(0.1))
    ```
    """

    __slots__ = ()

    def __new__(
        cls,
        feature_columns: Sequence[Any] | None = None,
        optimization_parameters: OptimizationParameters | None = None,
        clipping_limit: float | None = None,
        pipeline_execution_with_tensor_core: bool = False,
        experimental_gradient_multiplier_fn: Callable[[tf.Tensor], Any] | None = None,
        feature_to_config_dict: Mapping[str, FeatureConfig] | None = None,
        table_to_config_dict: Mapping[str, TableConfig] | None = None,
        partition_strategy: str = "div",
        profile_data_directory: str | None = None,
        *,
        sparse_core_embedding_config: Any = None,
    ) -> EmbeddingConfigSpec:
        """Checks the arguments and makes a spec."""
        has_dicts = bool(feature_to_config_dict and table_to_config_dict)
        if bool(feature_columns) == has_dicts:
            raise ValueError(
                "Exactly one of `feature_columns` and the pair `feature_to_config_dict` and "
                f"`table_to_config_dict` must be specified; got {feature_columns!r}, "
                f"{feature_to_config_dict!r} and {table_to_config_dict!r}."
            )
        if partition_strategy not in PARTITION_STRATEGIES:
            raise ValueError(
                f"Invalid partition_strategy {partition_strategy!r}. Must be one of "
                f"{' or '.join(map(repr, PARTITION_STRATEGIES))}."
            )
        _check_sparse_core_config(sparse_core_embedding_config)
        on_embedding_core = on_tensor_core = None
        if feature_columns:
            _check_columns(feature_columns)
            _check_parameters(optimization_parameters)
            on_tensor_core = [c for c in feature_columns if tf_private.is_on_tensor_core(c)]
            on_embedding_core = [c for c in feature_columns if not tf_private.is_on_tensor_core(c)]
        else:
            _check_dicts(feature_to_config_dict or {}, table_to_config_dict or {})
        return super().__new__(
            cls,
            feature_columns=on_embedding_core,
            tensor_core_feature_columns=on_tensor_core,
            optimization_parameters=optimization_parameters,
            clipping_limit=clipping_limit,
            pipeline_execution_with_tensor_core=pipeline_execution_with_tensor_core,
            experimental_gradient_multiplier_fn=experimental_gradient_multiplier_fn,
            feature_to_config_dict=feature_to_config_dict,
            table_to_config_dict=table_to_config_dict,
            partition_strategy=partition_strategy,
            profile_data_directory=profile_data_directory,
            sparse_core_embedding_config=sparse_core_embedding_config,
        )


def _check_columns(columns: Sequence[Any]) -> None:
    kinds = (*tf_private.ORDINARY_COLUMNS, *tf_private.TPU_COLUMNS)
    for column in columns:
        if not isinstance(column, kinds):
            raise TypeError(
                "All feature columns must be supported types, such as those that "
                "tf.compat.v1.tpu.experimental.embedding_column makes; got "
                f"{type(column).__name__}: {column!r}."
            )


def _check_parameters(parameters: Any) -> None:
    if not isinstance(parameters, SUPPORTED_PARAMETERS):
        names = [kind.__name__ for kind in SUPPORTED_PARAMETERS]
        raise ValueError(
            f"optimization_parameters must be an instance of type {names}, of "
            f"tfx_tpu_trainer.estimator.tpu.experimental; got {parameters!r}."
        )


def _check_sparse_core_config(config: Any) -> None:
    if config is None:
        return
    kind = getattr(tf.tpu.experimental.embedding, "SparseCoreEmbeddingConfig", None)
    if kind is None:
        raise TypeError(
            f"TensorFlow {tf.__version__} has no SparseCoreEmbeddingConfig: leave out "
            f"sparse_core_embedding_config ({config!r}), or use TensorFlow 2.21."
        )
    if not isinstance(config, kind):
        raise TypeError(
            "sparse_core_embedding_config must be a "
            f"tf.tpu.experimental.embedding.SparseCoreEmbeddingConfig; got {config!r}."
        )


def _check_dicts(features: Mapping[str, Any], tables: Mapping[str, Any]) -> None:
    for feature, config in features.items():
        if not isinstance(config, FeatureConfig):
            raise TypeError(
                f"Config for feature {feature} must be of type `FeatureConfig`; got {config!r}."
            )
        if config.table_id not in tables:
            raise ValueError(
                f"Feature {feature} refers to table {config.table_id} which is not in the "
                f"table_to_config_dict; it has {sorted(tables)}."
            )
    for table, config in tables.items():
        if not isinstance(config, TableConfig):
            raise TypeError(
                f"Config for table {table} must be of type `TableConfig`; got {config!r}."
            )


def check_embeddings(spec: Any, *, config: RunConfig, use_tpu: bool, eval_on_tpu: bool) -> None:
    """Checks an estimator's spec against its configuration."""
    if spec is None:
        return
    if not isinstance(spec, EmbeddingConfigSpec):
        raise TypeError(
            "embedding_config_spec must be an EmbeddingConfigSpec of "
            f"tfx_tpu_trainer.estimator.tpu.experimental; got {spec!r}."
        )
    tpu_config = config.tpu_config
    mode = InputMode(tpu_config.per_host_input_for_training)
    if use_tpu and mode not in _INPUT_MODES:
        raise ValueError(
            "Only PER_HOST_V1 and PER_HOST_V2 is supported when using TPU Embedding; got "
            f"{mode.name}. Set TPUConfig(per_host_input_for_training=...) to one of the two."
        )
    if spec.partition_strategy == "mod" and not (use_tpu and eval_on_tpu):
        raise ValueError(
            "Mod sharding of embedding tables not supported on CPU: with "
            f'use_tpu={use_tpu} and eval_on_tpu={eval_on_tpu} use partition_strategy="div".'
        )
    if tpu_config.num_shards == 1 and tpu_config.num_cores_per_replica is None:
        raise ValueError(
            "Setting TPUConfig.num_shards==1 is unsupported when embedding_config_spec is not "
            "None: leave num_shards out, or set num_cores_per_replica=1 beside it."
        )


def refuse_embeddings(spec: EmbeddingConfigSpec | None, where: str) -> None:
    """Refuses embeddings where their tables can't be looked up."""
    if spec is not None:
        raise ValueError(
            f"embedding_config_spec is not implemented {where}. Run under a TPUStrategy "
            "(RunConfig(train_distribute=...)), which looks up on the TPU's embedding hardware; or "
            'emulate the cores with RunConfig(master="emulated") or TFX_TPU_TRAINER_EMULATE=1; or '
            "run with use_tpu=False, where the columns are ordinary embedding columns."
        )
