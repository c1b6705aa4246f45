"""The linear estimators of `tf.compat.v1.estimator`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._estimator import Estimator
from tfx_tpu_trainer.estimator._run_config import RunConfig
from tfx_tpu_trainer.estimator.canned._forms import V1
from tfx_tpu_trainer.estimator.heads import Head

v1 = tf.compat.v1


class LinearClassifier(Estimator):
    """Tells which class a row is of, by a linear model.

    Mirrors `tf.compat.v1.estimator.LinearClassifier`. The arguments are those of
    `tfx_tpu_trainer.estimator.LinearClassifier`, except for an `optimizer` of `tf.compat.v1.train`; a `loss_reduction`
    of `tf.compat.v1.losses.Reduction`, by default the sum; and `partitioner`, which cuts the variables of the model
    over parameter servers, by default into slices of at least 64 MB.
    """

    def __init__(
        self,
        feature_columns: Iterable[Any],
        model_dir: str | os.PathLike[str] | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        partitioner: Callable[..., Any] | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = v1.losses.Reduction.SUM,
        sparse_combiner: str = "sum",
    ) -> None:
        super().__init__(
            V1.linear(
                V1.classification_head(n_classes, weight_column, label_vocabulary, loss_reduction),
                feature_columns,
                optimizer=optimizer,
                sparse_combiner=sparse_combiner,
                partitioner=partitioner,
            ),
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )


class LinearRegressor(Estimator):
    """Tells the numbers of a row, by a linear model.

    Mirrors `tf.compat.v1.estimator.LinearRegressor`. The arguments are those of
    `tfx_tpu_trainer.estimator.LinearRegressor`, except for an `optimizer` of `tf.compat.v1.train`; a `loss_reduction`
    of `tf.compat.v1.losses.Reduction`, by default the sum; and `partitioner`, which cuts the variables of the model
    over parameter servers, by default into slices of at least 64 MB.
    """

    def __init__(
        self,
        feature_columns: Iterable[Any],
        model_dir: str | os.PathLike[str] | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        partitioner: Callable[..., Any] | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = v1.losses.Reduction.SUM,
        sparse_combiner: str = "sum",
    ) -> None:
        super().__init__(
            V1.linear(
                V1.regression_head(label_dimension, weight_column, loss_reduction),
                feature_columns,
                optimizer=optimizer,
                sparse_combiner=sparse_combiner,
                partitioner=partitioner,
            ),
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )


class LinearEstimator(Estimator):
    """A head of your own on a linear model.

    Mirrors `tf.compat.v1.estimator.LinearEstimator`. The arguments are those of
    `tfx_tpu_trainer.estimator.LinearEstimator`, except for an `optimizer` of `tf.compat.v1.train`, and `partitioner`,
    which cuts the variables of the model over parameter servers, by default into slices of at least 64 MB.
    """

    def __init__(
        self,
        head: Head,
        feature_columns: Iterable[Any],
        model_dir: str | os.PathLike[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        partitioner: Callable[..., Any] | None = None,
        sparse_combiner: str = "sum",
        warm_start_from: Any = None,
    ) -> None:
        super().__init__(
            V1.linear(
                head,
                feature_columns,
                optimizer=optimizer,
                sparse_combiner=sparse_combiner,
                partitioner=partitioner,
            ),
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )
