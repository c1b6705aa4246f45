"""The deep estimators of `tf.compat.v1.estimator`."""

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


class DNNClassifier(Estimator):
    """Tells which class a row is of, by a deep model.

    Mirrors `tf.compat.v1.estimator.DNNClassifier`. The arguments are those of
    `tfx_tpu_trainer.estimator.DNNClassifier`, except for an `optimizer` of `tf.compat.v1.train`; a `loss_reduction` of
    `tf.compat.v1.losses.Reduction`, by default the sum; and `input_layer_partitioner`, which cuts the variables of the
    columns over parameter servers, by default into slices of at least 64 MB.
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Iterable[Any],
        model_dir: str | os.PathLike[str] | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Adagrad",
        activation_fn: Any = tf.nn.relu,
        dropout: float | None = None,
        input_layer_partitioner: Callable[..., Any] | None = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = v1.losses.Reduction.SUM,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(
            V1.dnn(
                V1.classification_head(n_classes, weight_column, label_vocabulary, loss_reduction),
                feature_columns,
                hidden_units=hidden_units,
                activation_fn=activation_fn,
                dropout=dropout,
                batch_norm=batch_norm,
                optimizer=optimizer,
                partitioner=input_layer_partitioner,
            ),
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )


class DNNRegressor(Estimator):
    """Tells the numbers of a row, by a deep model.

    Mirrors `tf.compat.v1.estimator.DNNRegressor`. The arguments are those of `tfx_tpu_trainer.estimator.DNNRegressor`,
    except for an `optimizer` of `tf.compat.v1.train`; a `loss_reduction` of `tf.compat.v1.losses.Reduction`, by default
    the sum; and `input_layer_partitioner`, which cuts the variables of the columns over parameter servers, by default
    into slices of at least 64 MB.
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Iterable[Any],
        model_dir: str | os.PathLike[str] | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Adagrad",
        activation_fn: Any = tf.nn.relu,
        dropout: float | None = None,
        input_layer_partitioner: Callable[..., Any] | None = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = v1.losses.Reduction.SUM,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(
            V1.dnn(
                V1.regression_head(label_dimension, weight_column, loss_reduction),
                feature_columns,
                hidden_units=hidden_units,
                activation_fn=activation_fn,
                dropout=dropout,
                batch_norm=batch_norm,
                optimizer=optimizer,
                partitioner=input_layer_partitioner,
            ),
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )


class DNNEstimator(Estimator):
    """A head of your own on a deep model.

    Mirrors `tf.compat.v1.estimator.DNNEstimator`. The arguments are those of `tfx_tpu_trainer.estimator.DNNEstimator`,
    except for an `optimizer` of `tf.compat.v1.train`, and `input_layer_partitioner`, which cuts the variables of the
    columns over parameter servers, by default into slices of at least 64 MB.
    """

    def __init__(
        self,
        head: Head,
        hidden_units: Sequence[int],
        feature_columns: Iterable[Any],
        model_dir: str | os.PathLike[str] | None = None,
        optimizer: Any = "Adagrad",
        activation_fn: Any = tf.nn.relu,
        dropout: float | None = None,
        input_layer_partitioner: Callable[..., Any] | None = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(
            V1.dnn(
                head,
                feature_columns,
                hidden_units=hidden_units,
                activation_fn=activation_fn,
                dropout=dropout,
                batch_norm=batch_norm,
                optimizer=optimizer,
                partitioner=input_layer_partitioner,
            ),
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )
