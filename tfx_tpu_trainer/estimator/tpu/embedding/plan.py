"""Which tables and features a spec stands for on cores."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator.tpu.embedding import tf_private
from tfx_tpu_trainer.estimator.tpu.embedding.configs import FeatureConfig, TableConfig
from tfx_tpu_trainer.estimator.tpu.embedding.optimization_parameters import OptimizationParameters
from tfx_tpu_trainer.estimator.tpu.embedding.spec import EmbeddingConfigSpec

_logger = tf.get_logger()

_TABLE_PREFIX = "tbl_"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingPlan:
    """The embeddings of a model on cores.

    Attributes:
        tables: Table name -> its configuration.
        features: Feature name -> its configuration.
        tensor_core_columns: Columns whose tables are variables of the model.
        from_columns: Whether columns name the tables' variables; else the tables do.
        parameters: Trains the tables that have no parameters of their own.
        gradient_multiplier_fn: Takes the global step and returns what gradients are multiplied by.
    """

    tables: Mapping[str, TableConfig]
    features: Mapping[str, FeatureConfig]
    tensor_core_columns: Sequence[Any]
    from_columns: bool
    parameters: OptimizationParameters | None
    gradient_multiplier_fn: Callable[[tf.Tensor], Any] | None

    def features_of(self, table: str) -> list[str]:
        """Returns the features that look up in a table."""
        return [name for name, feature in self.features.items() if feature.table_id == table]

    def combiner(self, feature: str) -> str | None:
        """Returns the combiner of a feature's table."""
        return self.tables[self.features[feature].table_id].combiner

    def variable_names(self, used: Mapping[str, str]) -> dict[str, str]:
        """Names the variables of the tables as a run without a TPU does.

        Args:
            used: The names that the columns noted while the model was built.

        Returns:
            Table name -> variable name.

        Raises:
            RuntimeError: If the model does not use a column.
        """
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
    """Works out a spec's tables and features.

    Args:
        spec: The spec.

    Returns:
        The plan.

    Raises:
        TypeError: If a column is not one made for TPUs.
        ValueError: If two columns embed one feature.
    """
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


def _of_columns(
    columns: Sequence[Any],
) -> tuple[dict[str, TableConfig], dict[str, FeatureConfig]]:
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
