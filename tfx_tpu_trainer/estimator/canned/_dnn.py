"""The deep estimators of `tf.estimator`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._estimator import Estimator
from tfx_tpu_trainer.estimator._run_config import RunConfig
from tfx_tpu_trainer.estimator.canned._forms import SUM_OVER_BATCH_SIZE, V2
from tfx_tpu_trainer.estimator.heads import Head


class DNNClassifier(Estimator):
    """Tells which class a row is of, by a deep model; mirrors `tf.estimator.DNNClassifier`.

    Examples:
        >>> from tfx_tpu_trainer.estimator import DNNClassifier, inputs
        >>> import numpy as np
        >>> import tensorflow as tf
        >>> ages = np.array([5.0, 15.0, 70.0, 80.0], np.float32)
        >>> input_fn = inputs.numpy_input_fn(
        ...     {"age": ages}, np.array([0, 0, 1, 1]), num_epochs=None, shuffle=False
        ... )
        >>> age = tf.feature_column.numeric_column("age", normalizer_fn=lambda years: years / 100)
        >>> estimator = DNNClassifier([8], [age], model_dir="runs/deep", optimizer="Adam")
        >>> metrics = estimator.train(input_fn, max_steps=10).evaluate(input_fn, steps=1)
        >>> print(metrics["global_step"], sorted(metrics)[:3])
        10 ['accuracy', 'accuracy_baseline', 'auc']
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
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = SUM_OVER_BATCH_SIZE,
        batch_norm: bool = False,
    ) -> None:
        """Checks the arguments.

        Args:
            hidden_units: Width of each hidden layer.
            feature_columns: Dense columns of `tf.feature_column`; categorical ones wrapped in
                `indicator_column` or `embedding_column`.
            model_dir: Folder of checkpoints and events. Defaults to that of `config`, or else to
                a temporary folder.
            n_classes: How many classes there are. Defaults to 2.
            weight_column: Name or numeric column of the feature that weights each row's loss.
                Defaults to `None`, all alike.
            label_vocabulary: The classes' names, where labels are strings. Defaults to `None`:
                labels are integers in [0, n_classes).
            optimizer: A `tf.keras.optimizers.legacy.Optimizer`, one of the names 'Adagrad', 'Adam', 'Ftrl', 'RMSProp',
                'SGD', or a function that returns an optimizer. Defaults to 'Adagrad'.
            activation_fn: Activation of the hidden layers. Defaults to ReLU.
            dropout: Share of the values that are dropped in training, in [0, 1). Defaults to
                `None`.
            config: Configuration of the runs. Defaults to `RunConfig()`.
            warm_start_from: Where first values come from: a checkpoint, a SavedModel or
                `WarmStartSettings`. Defaults to `None`.
            loss_reduction: How the losses of the rows become one, a constant of
                `tf.losses.Reduction`. Defaults to their mean.
            batch_norm: Whether each hidden layer's output is normalized over the batch. Defaults
                to `False`.

        Raises:
            ValueError: If an argument does not hold.
        """
        super().__init__(
            V2.dnn(
                V2.classification_head(n_classes, weight_column, label_vocabulary, loss_reduction),
                feature_columns,
                hidden_units=hidden_units,
                activation_fn=activation_fn,
                dropout=dropout,
                batch_norm=batch_norm,
                optimizer=optimizer,
            ),
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )


class DNNRegressor(Estimator):
    """Tells the numbers of a row, by a deep model; mirrors `tf.estimator.DNNRegressor`."""

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
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = SUM_OVER_BATCH_SIZE,
        batch_norm: bool = False,
    ) -> None:
        """Checks the arguments.

        Args:
            hidden_units: Width of each hidden layer.
            feature_columns: Dense columns of `tf.feature_column`; categorical ones wrapped in
                `indicator_column` or `embedding_column`.
            model_dir: Folder of checkpoints and events. Defaults to that of `config`, or else to
                a temporary folder.
            label_dimension: How many numbers a row's label has. Defaults to 1.
            weight_column: Name or numeric column of the feature that weights each row's loss.
                Defaults to `None`, all alike.
            optimizer: A `tf.keras.optimizers.legacy.Optimizer`, one of the names 'Adagrad', 'Adam', 'Ftrl', 'RMSProp',
                'SGD', or a function that returns an optimizer. Defaults to 'Adagrad'.
            activation_fn: Activation of the hidden layers. Defaults to ReLU.
            dropout: Share of the values that are dropped in training, in [0, 1). Defaults to
                `None`.
            config: Configuration of the runs. Defaults to `RunConfig()`.
            warm_start_from: Where first values come from: a checkpoint, a SavedModel or
                `WarmStartSettings`. Defaults to `None`.
            loss_reduction: How the losses of the rows become one, a constant of
                `tf.losses.Reduction`. Defaults to their mean.
            batch_norm: Whether each hidden layer's output is normalized over the batch. Defaults
                to `False`.

        Raises:
            ValueError: If an argument does not hold.
        """
        super().__init__(
            V2.dnn(
                V2.regression_head(label_dimension, weight_column, loss_reduction),
                feature_columns,
                hidden_units=hidden_units,
                activation_fn=activation_fn,
                dropout=dropout,
                batch_norm=batch_norm,
                optimizer=optimizer,
            ),
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )


class DNNEstimator(Estimator):
    """A head of your own on a deep model; mirrors `tf.estimator.DNNEstimator`."""

    def __init__(
        self,
        head: Head,
        hidden_units: Sequence[int],
        feature_columns: Iterable[Any],
        model_dir: str | os.PathLike[str] | None = None,
        optimizer: Any = "Adagrad",
        activation_fn: Any = tf.nn.relu,
        dropout: float | None = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        batch_norm: bool = False,
    ) -> None:
        """Checks the arguments.

        Args:
            head: A `Head`: loss, metrics, predictions and signatures.
            hidden_units: Width of each hidden layer.
            feature_columns: Dense columns of `tf.feature_column`; categorical ones wrapped in
                `indicator_column` or `embedding_column`.
            model_dir: Folder of checkpoints and events. Defaults to that of `config`, or else to
                a temporary folder.
            optimizer: A `tf.keras.optimizers.legacy.Optimizer`, one of the names 'Adagrad', 'Adam', 'Ftrl', 'RMSProp',
                'SGD', or a function that returns an optimizer. Defaults to 'Adagrad'.
            activation_fn: Activation of the hidden layers. Defaults to ReLU.
            dropout: Share of the values that are dropped in training, in [0, 1). Defaults to
                `None`.
            config: Configuration of the runs. Defaults to `RunConfig()`.
            warm_start_from: Where first values come from: a checkpoint, a SavedModel or
                `WarmStartSettings`. Defaults to `None`.
            batch_norm: Whether each hidden layer's output is normalized over the batch. Defaults
                to `False`.

        Raises:
            ValueError: If an argument does not hold.
        """
        super().__init__(
            V2.dnn(
                head,
                feature_columns,
                hidden_units=hidden_units,
                activation_fn=activation_fn,
                dropout=dropout,
                batch_norm=batch_norm,
                optimizer=optimizer,
            ),
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )
