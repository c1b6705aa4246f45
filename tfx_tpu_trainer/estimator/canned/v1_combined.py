"""The linear and deep estimators, combined, of `tf.compat.v1.estimator`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator.canned.combined_model import halves, v1_combined_model_fn
from tfx_tpu_trainer.estimator.canned.default_heads import (
    v1_classification_head,
    v1_regression_head,
)
from tfx_tpu_trainer.estimator.canned.dnn_model import HiddenLayers
from tfx_tpu_trainer.estimator.estimator import Estimator
from tfx_tpu_trainer.estimator.heads import Head
from tfx_tpu_trainer.estimator.run_config import RunConfig

v1 = tf.compat.v1


class DNNLinearCombinedClassifier(Estimator):
    """Tells which class a row is of, by a linear and a deep model, summed up.

    Mirrors `tf.compat.v1.estimator.DNNLinearCombinedClassifier`.
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
        """Checks the arguments.

        Args:
            model_dir: Folder of checkpoints and events. Defaults to that of `config`, or else to
                a temporary folder.
            linear_feature_columns: Columns of the linear half. Defaults to `None`, no such half.
            linear_optimizer: As `dnn_optimizer`, of the linear half. Defaults to 'Ftrl'.
            dnn_feature_columns: Dense columns of the deep half. Defaults to `None`, no such half.
            dnn_optimizer: Of the deep half: a `tf.compat.v1.train.Optimizer`, one of the names
                'Adagrad', 'Adam', 'Ftrl', 'RMSProp', 'SGD', or a function that gives an
                optimizer. Defaults to 'Adagrad'.
            dnn_hidden_units: Width of each of its hidden layers; needed with
                `dnn_feature_columns`.
            dnn_activation_fn: Activation of its hidden layers. Defaults to ReLU.
            dnn_dropout: Share of its values that are dropped in training, in [0, 1). Defaults to
                `None`.
            n_classes: How many classes there are. Defaults to 2.
            weight_column: Name or numeric column of the feature that weights each row's loss.
                Defaults to `None`, all alike.
            label_vocabulary: The classes' names, where labels are strings. Defaults to `None`:
                labels are integers in [0, n_classes).
            input_layer_partitioner: How the variables of the columns are cut over parameter
                servers. Defaults to `None`: into slices of at least 64 MB.
            config: Configuration of the runs. Defaults to `RunConfig()`.
            warm_start_from: Where first values come from: a checkpoint, a SavedModel or
                `WarmStartSettings`. Defaults to `None`.
            loss_reduction: How the losses of the rows become one, a constant of
                `tf.compat.v1.losses.Reduction`. Defaults to their sum.
            batch_norm: Whether each hidden layer's output is normalized over the batch. Defaults
                to `False`.
            linear_sparse_combiner: `"mean"`, `"sqrtn"` or `"sum"`, the default: how several
                values of a categorical column in one row are put together.

        Raises:
            ValueError: If an argument does not hold.
        """
        linear, deep = halves(
            linear_columns=linear_feature_columns,
            linear_optimizer=linear_optimizer,
            linear_sparse_combiner=linear_sparse_combiner,
            dnn_columns=dnn_feature_columns,
            dnn_optimizer=dnn_optimizer,
            hidden=HiddenLayers(
                tuple(dnn_hidden_units or ()), dnn_activation_fn, dnn_dropout, batch_norm
            ),
            allow_v1=True,
        )
        model_fn = v1_combined_model_fn(
            head=v1_classification_head(
                n_classes=n_classes,
                weight_column=weight_column,
                label_vocabulary=label_vocabulary,
                loss_reduction=loss_reduction,
            ),
            linear=linear,
            deep=deep,
            partitioner=input_layer_partitioner,
        )
        super().__init__(
            model_fn, model_dir=model_dir, config=config, warm_start_from=warm_start_from
        )


class DNNLinearCombinedRegressor(Estimator):
    """Tells the numbers of a row, by a linear and a deep model, summed up.

    Mirrors `tf.compat.v1.estimator.DNNLinearCombinedRegressor`.
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
        """Checks the arguments.

        Args:
            model_dir: Folder of checkpoints and events. Defaults to that of `config`, or else to
                a temporary folder.
            linear_feature_columns: Columns of the linear half. Defaults to `None`, no such half.
            linear_optimizer: As `dnn_optimizer`, of the linear half. Defaults to 'Ftrl'.
            dnn_feature_columns: Dense columns of the deep half. Defaults to `None`, no such half.
            dnn_optimizer: Of the deep half: a `tf.compat.v1.train.Optimizer`, one of the names
                'Adagrad', 'Adam', 'Ftrl', 'RMSProp', 'SGD', or a function that gives an
                optimizer. Defaults to 'Adagrad'.
            dnn_hidden_units: Width of each of its hidden layers; needed with
                `dnn_feature_columns`.
            dnn_activation_fn: Activation of its hidden layers. Defaults to ReLU.
            dnn_dropout: Share of its values that are dropped in training, in [0, 1). Defaults to
                `None`.
            label_dimension: How many numbers a row's label has. Defaults to 1.
            weight_column: Name or numeric column of the feature that weights each row's loss.
                Defaults to `None`, all alike.
            input_layer_partitioner: How the variables of the columns are cut over parameter
                servers. Defaults to `None`: into slices of at least 64 MB.
            config: Configuration of the runs. Defaults to `RunConfig()`.
            warm_start_from: Where first values come from: a checkpoint, a SavedModel or
                `WarmStartSettings`. Defaults to `None`.
            loss_reduction: How the losses of the rows become one, a constant of
                `tf.compat.v1.losses.Reduction`. Defaults to their sum.
            batch_norm: Whether each hidden layer's output is normalized over the batch. Defaults
                to `False`.
            linear_sparse_combiner: `"mean"`, `"sqrtn"` or `"sum"`, the default: how several
                values of a categorical column in one row are put together.

        Raises:
            ValueError: If an argument does not hold.
        """
        linear, deep = halves(
            linear_columns=linear_feature_columns,
            linear_optimizer=linear_optimizer,
            linear_sparse_combiner=linear_sparse_combiner,
            dnn_columns=dnn_feature_columns,
            dnn_optimizer=dnn_optimizer,
            hidden=HiddenLayers(
                tuple(dnn_hidden_units or ()), dnn_activation_fn, dnn_dropout, batch_norm
            ),
            allow_v1=True,
        )
        model_fn = v1_combined_model_fn(
            head=v1_regression_head(
                label_dimension=label_dimension,
                weight_column=weight_column,
                loss_reduction=loss_reduction,
            ),
            linear=linear,
            deep=deep,
            partitioner=input_layer_partitioner,
        )
        super().__init__(
            model_fn, model_dir=model_dir, config=config, warm_start_from=warm_start_from
        )


class DNNLinearCombinedEstimator(Estimator):
    """A head of your own on a linear and a deep model, summed up.

    Mirrors `tf.compat.v1.estimator.DNNLinearCombinedEstimator`.
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
        """Checks the arguments.

        Args:
            head: A `Head`: loss, metrics, predictions and signatures.
            model_dir: Folder of checkpoints and events. Defaults to that of `config`, or else to
                a temporary folder.
            linear_feature_columns: Columns of the linear half. Defaults to `None`, no such half.
            linear_optimizer: As `dnn_optimizer`, of the linear half. Defaults to 'Ftrl'.
            dnn_feature_columns: Dense columns of the deep half. Defaults to `None`, no such half.
            dnn_optimizer: Of the deep half: a `tf.compat.v1.train.Optimizer`, one of the names
                'Adagrad', 'Adam', 'Ftrl', 'RMSProp', 'SGD', or a function that gives an
                optimizer. Defaults to 'Adagrad'.
            dnn_hidden_units: Width of each of its hidden layers; needed with
                `dnn_feature_columns`.
            dnn_activation_fn: Activation of its hidden layers. Defaults to ReLU.
            dnn_dropout: Share of its values that are dropped in training, in [0, 1). Defaults to
                `None`.
            input_layer_partitioner: How the variables of the columns are cut over parameter
                servers. Defaults to `None`: into slices of at least 64 MB.
            config: Configuration of the runs. Defaults to `RunConfig()`.
            batch_norm: Whether each hidden layer's output is normalized over the batch. Defaults
                to `False`.
            linear_sparse_combiner: `"mean"`, `"sqrtn"` or `"sum"`, the default: how several
                values of a categorical column in one row are put together.

        Raises:
            ValueError: If an argument does not hold.
        """
        linear, deep = halves(
            linear_columns=linear_feature_columns,
            linear_optimizer=linear_optimizer,
            linear_sparse_combiner=linear_sparse_combiner,
            dnn_columns=dnn_feature_columns,
            dnn_optimizer=dnn_optimizer,
            hidden=HiddenLayers(
                tuple(dnn_hidden_units or ()), dnn_activation_fn, dnn_dropout, batch_norm
            ),
            allow_v1=True,
        )
        model_fn = v1_combined_model_fn(
            head=head,
            linear=linear,
            deep=deep,
            partitioner=input_layer_partitioner,
        )
        super().__init__(model_fn, model_dir=model_dir, config=config)
