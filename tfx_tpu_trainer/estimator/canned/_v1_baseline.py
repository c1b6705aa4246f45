"""The baseline estimators of `tf.compat.v1.estimator`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._estimator import Estimator
from tfx_tpu_trainer.estimator._run_config import RunConfig
from tfx_tpu_trainer.estimator.canned._forms import V1
from tfx_tpu_trainer.estimator.heads import Head

v1 = tf.compat.v1


class BaselineClassifier(Estimator):
    """Tells which class a row is of, by a bias, the same for all rows.

    Mirrors `tf.compat.v1.estimator.BaselineClassifier`. The arguments are those of
    `tfx_tpu_trainer.estimator.BaselineClassifier`, except for an `optimizer` of `tf.compat.v1.train`, and a
    `loss_reduction` of `tf.compat.v1.losses.Reduction`, by default the sum.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: str = v1.losses.Reduction.SUM,
    ) -> None:
        super().__init__(
            V1.baseline(
                V1.classification_head(n_classes, weight_column, label_vocabulary, loss_reduction),
                optimizer=optimizer,
                weight_column=weight_column,
            ),
            model_dir=model_dir,
            config=config,
        )


class BaselineRegressor(Estimator):
    """Tells the numbers of a row, by a bias, the same for all rows.

    Mirrors `tf.compat.v1.estimator.BaselineRegressor`. The arguments are those of
    `tfx_tpu_trainer.estimator.BaselineRegressor`, except for an `optimizer` of `tf.compat.v1.train`, and a
    `loss_reduction` of `tf.compat.v1.losses.Reduction`, by default the sum.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: str = v1.losses.Reduction.SUM,
    ) -> None:
        super().__init__(
            V1.baseline(
                V1.regression_head(label_dimension, weight_column, loss_reduction),
                optimizer=optimizer,
                weight_column=weight_column,
            ),
            model_dir=model_dir,
            config=config,
        )


class BaselineEstimator(Estimator):
    """A head of your own on a bias, the same for all rows.

    Mirrors `tf.compat.v1.estimator.BaselineEstimator`. The arguments are those of
    `tfx_tpu_trainer.estimator.BaselineEstimator`, except for an `optimizer` of `tf.compat.v1.train`.
    """

    def __init__(
        self,
        head: Head,
        model_dir: str | os.PathLike[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
    ) -> None:
        super().__init__(
            V1.baseline(
                head,
                optimizer=optimizer,
            ),
            model_dir=model_dir,
            config=config,
        )
