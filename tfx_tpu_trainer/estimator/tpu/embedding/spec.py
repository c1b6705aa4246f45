"""Defines a TPUEstimator's embeddings: tables, features, their spec, and its plan on cores."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_tpu_trainer.estimator.tpu._run_config import RunConfig
from tfx_tpu_trainer.estimator.tpu.cores.layout import InputMode
from tfx_tpu_trainer.estimator.tpu.embedding import tf_private
from tfx_tpu_trainer.estimator.tpu.embedding.optimization_parameters import (
    SUPPORTED_PARAMETERS,
    OptimizationParameters,
)

v1 = tf.compat.v1
_logger = tf.get_logger()


PARTITION_STRATEGIES = ("div", "mod")
_COMBINERS = ("mean", "sum", "sqrtn", None)
_TABLE_PREFIX = "tbl_"
_INPUT_MODES = (InputMode.PER_HOST_V1, InputMode.PER_HOST_V2)


@dataclasses.dataclass(frozen=True)
class TableConfig:
    """An embedding table; mirrors the class of that name in TensorFlow up to 2.15.

    Attributes:
        vocabulary_size: Number of rows.
        dimension: Length of a row.
        initializer: Variable initializer. Defaults to a truncated normal of standard deviation
            1 / sqrt(dimension).
        combiner: How the ids of one row are combined: `"mean"` (default), `"sum"`, `"sqrtn"`, or
            `None` for features of one dense id per row.
        hot_id_replication: A hint to TPU hardware; emulated tables don't need it.
        learning_rate: Learning rate of this table; excludes `learning_rate_fn`. Defaults to
            `None`, that of the optimization parameters.
        learning_rate_fn: Takes the global step, a scalar tensor, and returns the learning rate.
        optimization_parameters: The table's own optimizer. Defaults to `None`, that of the spec.

    Raises:
        ValueError: If a value is invalid.
    """

    vocabulary_size: int
    dimension: int
    initializer: Callable[..., Any] | None = None
    combiner: str | None = "mean"
    hot_id_replication: bool = False
    learning_rate: float | None = None
    learning_rate_fn: Callable[[tf.Tensor], Any] | None = None
    optimization_parameters: OptimizationParameters | None = None

    def __post_init__(self) -> None:
        for name in ("vocabulary_size", "dimension"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a positive int, got: {value!r}.")
        if self.initializer is None:
            default = v1.truncated_normal_initializer(stddev=1 / math.sqrt(self.dimension))
            object.__setattr__(self, "initializer", default)
        if not callable(self.initializer):
            raise ValueError(
                f"initializer must be callable if specified, got: {self.initializer!r}. Give a "
                "variable initializer, such as tf.compat.v1.zeros_initializer()."
            )
        if self.combiner not in _COMBINERS:
            raise ValueError(
                f'combiner must be "mean", "sum", "sqrtn" or None, got: {self.combiner!r}.'
            )
        if self.learning_rate is not None and self.learning_rate_fn is not None:
            raise ValueError(
                "At most one of learning_rate and learning_rate_fn can be given, got: "
                f"{self.learning_rate!r} and {self.learning_rate_fn!r}."
            )
        parameters = self.optimization_parameters
        if parameters is not None and not isinstance(parameters, OptimizationParameters):
            raise ValueError(
                "optimization_parameters must be one of the parameter classes of "
                "tfx_tpu_trainer.estimator.tpu.experimental, such as AdagradParameters; got: "
                f"{parameters!r}."
            )


@dataclasses.dataclass(frozen=True)
class FeatureConfig:
    """A feature of ids; mirrors the class of that name in TensorFlow up to 2.15.

    Attributes:
        table_id: Name of the table to look up in.
        max_sequence_length: Positions of a sequence to keep. Defaults to 0: a row's ids are
            combined.
        weight_key: Name of the feature that weights the ids. Defaults to `None`.

    Raises:
        ValueError: If the length is not an integer or negative.
    """

    table_id: str
    max_sequence_length: int = 0
    weight_key: str | None = None

    def __post_init__(self) -> None:
        length = self.max_sequence_length
        if not isinstance(length, int) or length < 0:
            raise ValueError(
                f"max_sequence_length must be zero or a positive int, got: {length!r}."
            )


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

    Mirrors `tf.compat.v1.estimator.tpu.experimental.EmbeddingConfigSpec`. On cores the tables of these columns are not
    variables of the model: ids are looked up before it, and the model's optimizer does not train them. With
    `use_tpu=False` the spec is ignored, and the columns are ordinary embedding columns.

    The field `feature_columns` lacks the columns of the tensor core, which are in `tensor_core_feature_columns`.

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
            "None: leave num_shards out, or set num_cores_per_replica=1, too."
        )


def refuse_embeddings(spec: EmbeddingConfigSpec | None, where: str) -> None:
    """Rejects embeddings whose tables can't be looked up."""
    if spec is not None:
        raise ValueError(
            f"embedding_config_spec is not implemented {where}. Run under a TPUStrategy "
            "(RunConfig(train_distribute=...)), which looks up on the TPU's embedding hardware; or "
            'emulate the cores with RunConfig(master="emulated") or TFX_TPU_TRAINER_EMULATE=1; or '
            "run with use_tpu=False, where the columns are ordinary embedding columns."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingPlan:
    """A model's embeddings on cores."""

    tables: Mapping[str, TableConfig]
    features: Mapping[str, FeatureConfig]
    tensor_core_columns: Sequence[Any]  # Columns whose tables are variables of the model.
    from_columns: bool  # Whether columns name the tables' variables; otherwise the tables do.
    parameters: OptimizationParameters | None  # The default parameters of tables.
    gradient_multiplier_fn: Callable[[tf.Tensor], Any] | None  # A function of the global step.

    def features_of(self, table: str) -> list[str]:
        """Returns the features of a table."""
        return [name for name, feature in self.features.items() if feature.table_id == table]

    def combiner(self, feature: str) -> str | None:
        """Returns the combiner of a feature's table."""
        return self.tables[self.features[feature].table_id].combiner

    def variable_names(self, used: Mapping[str, str]) -> dict[str, str]:
        """Returns the names of the tables' variables in a run without a TPU, as the columns recorded them."""
        if not self.from_columns:
            return {table: table for table in self.tables}
        unused = [
            feature
            for table in self.tables
            if table.removeprefix(_TABLE_PREFIX) not in used
            for feature in self.features_of(table)
        ]
        if unused:
            raise RuntimeError(
                "Embedding feature column did not capture any thing. Make sure the feature columns "
                "passed to TPUEstimator constructor is properly used in model_fn; those of "
                f"{unused} are not."
            )
        return {table: used[table.removeprefix(_TABLE_PREFIX)] for table in self.tables}


def plan_embeddings(spec: EmbeddingConfigSpec) -> EmbeddingPlan:
    """Determines a spec's tables and features."""
    if spec.clipping_limit is not None:
        _logger.warning(
            "clipping_limit=%s has no effect, as in the original: clip with clip_gradient_min and "
            "clip_gradient_max of the optimization parameters.",
            spec.clipping_limit,
        )
    tables = dict(spec.table_to_config_dict or {})
    features = dict(spec.feature_to_config_dict or {})
    from_columns = spec.feature_columns is not None
    if from_columns:
        tables, features = _of_columns(spec.feature_columns or [])
    return EmbeddingPlan(
        tables=tables,
        features=features,
        tensor_core_columns=tuple(spec.tensor_core_feature_columns or ()),
        from_columns=from_columns,
        parameters=spec.optimization_parameters,
        gradient_multiplier_fn=spec.experimental_gradient_multiplier_fn,
    )


def _of_columns(columns: Sequence[Any]) -> tuple[dict[str, TableConfig], dict[str, FeatureConfig]]:
    tables: dict[str, TableConfig] = {}
    features: dict[str, FeatureConfig] = {}
    for column in columns:
        if not isinstance(column, tf_private.TPU_COLUMNS):
            raise TypeError(
                f"Unsupported feature column {type(column)}. Supported types are those of "
                "tf.compat.v1.tpu.experimental, on TPU cores; got "
                f"{column!r}. Make it with tf.compat.v1.tpu.experimental.embedding_column or "
                "shared_embedding_columns, or leave it out of embedding_config_spec."
            )
        if isinstance(column, tf_private.DEPRECATED_TPU_COLUMNS):
            _logger.warning(
                "Columns of type %s are deprecated: use "
                "tf.compat.v1.tpu.experimental.embedding_column or shared_embedding_columns.",
                type(column).__name__,
            )
        # Columns may share a table, as shared_embedding_columns do: the second one sets the same TableConfig again. Two
        # tables for one feature are rejected, since activations are named after the feature.
        feature = column.get_feature_key_name()
        if feature in features:
            raise ValueError(
                f"Feature column {feature} is used with multiple embeddings and this is not "
                "supported: give the feature a second name in input_fn."
            )
        table = f"{_TABLE_PREFIX}{column.get_embedding_var_name()}"
        vocabulary_size, dimension = column.get_embedding_table_size()
        tables[table] = TableConfig(
            vocabulary_size=vocabulary_size,
            dimension=dimension,
            initializer=column.get_initializer(),
            combiner=column.get_combiner(),
            learning_rate_fn=column.get_learning_rate_fn(),
        )
        features[feature] = FeatureConfig(
            table_id=table,
            max_sequence_length=column.get_max_sequence_length(),
            weight_key=column.get_weight_key_name(),
        )
    return tables, features
