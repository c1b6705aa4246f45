"""What a table is and what a feature looks up in it, where no feature column says so."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator.tpu.embedding.optimization_parameters import OptimizationParameters

v1 = tf.compat.v1

_COMBINERS = ("mean", "sum", "sqrtn", None)


@dataclasses.dataclass(frozen=True)
class TableConfig:
    """An embedding table; mirrors the class of that name in TensorFlow up to 2.15.

    Attributes:
        vocabulary_size: Number of rows.
        dimension: Length of a row.
        initializer: Variable initializer. Defaults to a truncated normal of standard deviation
            1 / sqrt(dimension).
        combiner: What several ids of one row become: `"mean"` (default), `"sum"`, `"sqrtn"`, or
            `None` for features of one dense id a row.
        hot_id_replication: A hint to TPU hardware; emulated tables don't need it.
        learning_rate: Learning rate of this table; excludes `learning_rate_fn`. Defaults to
            `None`, that of the optimization parameters.
        learning_rate_fn: Takes the global step, a scalar tensor, and returns the learning rate.
        optimization_parameters: The table's own optimizer. Defaults to `None`, that of the spec.

    Raises:
        ValueError: If a value does not hold.
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
        max_sequence_length: Positions of a sequence to keep. Defaults to 0: no sequence, a row's
            ids are combined.
        weight_key: Name of the feature that weighs the ids. Defaults to `None`.

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
