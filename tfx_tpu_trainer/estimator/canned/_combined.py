"""The linear and deep estimators, combined, of `tf.estimator`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._estimator import Estimator
from tfx_tpu_trainer.estimator._run_config import RunConfig
from tfx_tpu_trainer.estimator.canned._forms import SUM_OVER_BATCH_SIZE, V2
from tfx_tpu_trainer.estimator.heads import Head


class DNNLinearCombinedClassifier(Estimator):
    """Tells which class a row is of, by a linear and a deep model, summed up.

    Mirrors `tf.estimator.DNNLinearCombinedClassifier`.

    Examples:
        >>> from tfx_tpu_trainer.estimator import DNNLinearCombinedClassifier, inputs
        >>> import numpy as np
        >>> import tensorflow as tf
        >>> towns = np.array(["Ulm", "Bonn", "Ulm", "Bonn"])
        >>> input_fn = inputs.numpy_input_fn(
        ...     {"town": towns}, np.array([0, 1, 0, 1]), num_epochs=None, shuffle=False
        ... )
        >>> town = tf.feature_column.categorical_column_with_vocabulary_list("town", ["Bonn", "Ulm"])
        >>> estimator = DNNLinearCombinedClassifier(
        ...     linear_feature_columns=[town],
        ...     dnn_feature_columns=[tf.feature_column.embedding_column(town, 2)],
        ...     dnn_hidden_units=[4],
        ...     model_dir="runs/wide-and-deep",
        ... )
        >>> estimator = estimator.train(input_fn, max_steps=5)
        >>> sorted({name.split("/")[0] for name in estimator.get_variable_names()})
        ['dnn', 'global_step', 'linear', 'training']
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
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = SUM_OVER_BATCH_SIZE,
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
            dnn_optimizer: Of the deep half: a `tf.keras.optimizers.legacy.Optimizer`, one of the names 'Adagrad',
                'Adam', 'Ftrl', 'RMSProp', 'SGD', or a function that returns an optimizer. Defaults to 'Adagrad'.
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
            config: Configuration of the runs. Defaults to `RunConfig()`.
            warm_start_from: Where first values come from: a checkpoint, a SavedModel or
                `WarmStartSettings`. Defaults to `None`.
            loss_reduction: How the losses of the rows become one, a constant of
                `tf.losses.Reduction`. Defaults to their mean.
            batch_norm: Whether each hidden layer's output is normalized over the batch. Defaults
                to `False`.
            linear_sparse_combiner: `"mean"`, `"sqrtn"` or `"sum"`, the default: how several values of a categorical
                column in one row are combined.

        Raises:
            ValueError: If an argument does not hold.
        """
        halves = V2.halves(
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
            V2.combined(
                V2.classification_head(n_classes, weight_column, label_vocabulary, loss_reduction),
                halves,
            ),
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )


class DNNLinearCombinedRegressor(Estimator):
    """Tells the numbers of a row, by a linear and a deep model, summed up.

    Mirrors `tf.estimator.DNNLinearCombinedRegressor`.
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
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = SUM_OVER_BATCH_SIZE,
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
            dnn_optimizer: Of the deep half: a `tf.keras.optimizers.legacy.Optimizer`, one of the names 'Adagrad',
                'Adam', 'Ftrl', 'RMSProp', 'SGD', or a function that returns an optimizer. Defaults to 'Adagrad'.
            dnn_hidden_units: Width of each of its hidden layers; needed with
                `dnn_feature_columns`.
            dnn_activation_fn: Activation of its hidden layers. Defaults to ReLU.
            dnn_dropout: Share of its values that are dropped in training, in [0, 1). Defaults to
                `None`.
            label_dimension: How many numbers a row's label has. Defaults to 1.
            weight_column: Name or numeric column of the feature that weights each row's loss.
                Defaults to `None`, all alike.
            config: Configuration of the runs. Defaults to `RunConfig()`.
            warm_start_from: Where first values come from: a checkpoint, a SavedModel or
                `WarmStartSettings`. Defaults to `None`.
            loss_reduction: How the losses of the rows become one, a constant of
                `tf.losses.Reduction`. Defaults to their mean.
            batch_norm: Whether each hidden layer's output is normalized over the batch. Defaults
                to `False`.
            linear_sparse_combiner: `"mean"`, `"sqrtn"` or `"sum"`, the default: how several values of a categorical
                column in one row are combined.

        Raises:
            ValueError: If an argument does not hold.
        """
        halves = V2.halves(
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
            V2.combined(
                V2.regression_head(label_dimension, weight_column, loss_reduction),
                halves,
            ),
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )


class DNNLinearCombinedEstimator(Estimator):
    """A head of your own on a linear and a deep model, summed up.

    Mirrors `tf.estimator.DNNLinearCombinedEstimator`.
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
            dnn_optimizer: Of the deep half: a `tf.keras.optimizers.legacy.Optimizer`, one of the names 'Adagrad',
                'Adam', 'Ftrl', 'RMSProp', 'SGD', or a function that returns an optimizer. Defaults to 'Adagrad'.
            dnn_hidden_units: Width of each of its hidden layers; needed with
                `dnn_feature_columns`.
            dnn_activation_fn: Activation of its hidden layers. Defaults to ReLU.
            dnn_dropout: Share of its values that are dropped in training, in [0, 1). Defaults to
                `None`.
            config: Configuration of the runs. Defaults to `RunConfig()`.
            batch_norm: Whether each hidden layer's output is normalized over the batch. Defaults
                to `False`.
            linear_sparse_combiner: `"mean"`, `"sqrtn"` or `"sum"`, the default: how several values of a categorical
                column in one row are combined.

        Raises:
            ValueError: If an argument does not hold.
        """
        halves = V2.halves(
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
            V2.combined(
                head,
                halves,
            ),
            model_dir=model_dir,
            config=config,
        )
