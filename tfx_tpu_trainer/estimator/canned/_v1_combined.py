"""The linear and deep estimators, combined, of `tf.compat.v1.estimator`."""

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


class DNNLinearCombinedClassifier(Estimator):
    """Tells which class a row is of, by a linear and a deep model, summed up.

    Mirrors `tf.compat.v1.estimator.DNNLinearCombinedClassifier`. The arguments are those of
    `tfx_tpu_trainer.estimator.DNNLinearCombinedClassifier`, except for optimizers of `tf.compat.v1.train`; a
    `loss_reduction` of `tf.compat.v1.losses.Reduction`, by default the sum; and `input_layer_partitioner`, which cuts
    the variables of the columns over parameter servers, by default into slices of at least 64 MB.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        linear_feature_columns: Iterable[Any] | None = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Iterable[Any] | None = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Any = tf.nn.relu,
        dnn_dropout: float | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        input_layer_partitioner: Callable[..., Any] | None = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = v1.losses.Reduction.SUM,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        halves = V1.halves(
            linear_columns=linear_feature_columns,
            linear_optimizer=linear_optimizer,
            linear_sparse_combiner=linear_sparse_combiner,
            dnn_columns=dnn_feature_columns,
            dnn_optimizer=dnn_optimizer,
            dnn_hidden_units=dnn_hidden_units,
            dnn_activation_fn=dnn_activation_fn,
            dnn_dropout=dnn_dropout,
            batch_norm=batch_norm,
        )
        super().__init__(
            V1.combined(
                V1.classification_head(n_classes, weight_column, label_vocabulary, loss_reduction),
                halves,
                partitioner=input_layer_partitioner,
            ),
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )


class DNNLinearCombinedRegressor(Estimator):
    """Tells the numbers of a row, by a linear and a deep model, summed up.

    Mirrors `tf.compat.v1.estimator.DNNLinearCombinedRegressor`. The arguments are those of
    `tfx_tpu_trainer.estimator.DNNLinearCombinedRegressor`, except for optimizers of `tf.compat.v1.train`; a
    `loss_reduction` of `tf.compat.v1.losses.Reduction`, by default the sum; and `input_layer_partitioner`, which cuts
    the variables of the columns over parameter servers, by default into slices of at least 64 MB.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        linear_feature_columns: Iterable[Any] | None = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Iterable[Any] | None = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Any = tf.nn.relu,
        dnn_dropout: float | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        input_layer_partitioner: Callable[..., Any] | None = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = v1.losses.Reduction.SUM,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        halves = V1.halves(
            linear_columns=linear_feature_columns,
            linear_optimizer=linear_optimizer,
            linear_sparse_combiner=linear_sparse_combiner,
            dnn_columns=dnn_feature_columns,
            dnn_optimizer=dnn_optimizer,
            dnn_hidden_units=dnn_hidden_units,
            dnn_activation_fn=dnn_activation_fn,
            dnn_dropout=dnn_dropout,
            batch_norm=batch_norm,
        )
        super().__init__(
            V1.combined(
                V1.regression_head(label_dimension, weight_column, loss_reduction),
                halves,
                partitioner=input_layer_partitioner,
            ),
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )


class DNNLinearCombinedEstimator(Estimator):
    """A head of your own on a linear and a deep model, summed up.

    Mirrors `tf.compat.v1.estimator.DNNLinearCombinedEstimator`. The arguments are those of
    `tfx_tpu_trainer.estimator.DNNLinearCombinedEstimator`, except for optimizers of `tf.compat.v1.train`, and
    `input_layer_partitioner`, which cuts the variables of the columns over parameter servers, by default into slices of
    at least 64 MB.
    """

    def __init__(
        self,
        head: Head,
        model_dir: str | os.PathLike[str] | None = None,
        linear_feature_columns: Iterable[Any] | None = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Iterable[Any] | None = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Any = tf.nn.relu,
        dnn_dropout: float | None = None,
        input_layer_partitioner: Callable[..., Any] | None = None,
        config: RunConfig | None = None,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        halves = V1.halves(
            linear_columns=linear_feature_columns,
            linear_optimizer=linear_optimizer,
            linear_sparse_combiner=linear_sparse_combiner,
            dnn_columns=dnn_feature_columns,
            dnn_optimizer=dnn_optimizer,
            dnn_hidden_units=dnn_hidden_units,
            dnn_activation_fn=dnn_activation_fn,
            dnn_dropout=dnn_dropout,
            batch_norm=batch_norm,
        )
        super().__init__(
            V1.combined(
                head,
                halves,
                partitioner=input_layer_partitioner,
            ),
            model_dir=model_dir,
            config=config,
        )
