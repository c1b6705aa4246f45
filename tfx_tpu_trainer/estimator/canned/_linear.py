"""The linear estimators of `tf.estimator`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from tfx_tpu_trainer.estimator._estimator import Estimator
from tfx_tpu_trainer.estimator._run_config import RunConfig
from tfx_tpu_trainer.estimator.canned._forms import SUM_OVER_BATCH_SIZE, V2
from tfx_tpu_trainer.estimator.heads import Head


class LinearClassifier(Estimator):
    """Tells which class a row is of, by a linear model; mirrors `tf.estimator.LinearClassifier`.

    Examples:
        >>> from tfx_tpu_trainer.estimator import LinearClassifier, inputs
        >>> import numpy as np
        >>> import tensorflow as tf
        >>> towns = np.array(["Ulm", "Bonn", "Ulm", "Bonn"])
        >>> input_fn = inputs.numpy_input_fn(
        ...     {"town": towns}, np.array([0, 1, 0, 1]), num_epochs=None, shuffle=False
        ... )
        >>> town = tf.feature_column.categorical_column_with_vocabulary_list("town", ["Bonn", "Ulm"])
        >>> estimator = LinearClassifier([town], model_dir="runs/linear")
        >>> estimator = estimator.train(input_fn, max_steps=20)
        >>> print(estimator.evaluate(input_fn, steps=1)["accuracy"])
        1.0
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
        warm_start_from: Any = None,
        loss_reduction: str = SUM_OVER_BATCH_SIZE,
        sparse_combiner: str = "sum",
    ) -> None:
        """Checks the arguments.

        Args:
            feature_columns: Columns of `tf.feature_column`, dense or categorical.
            model_dir: Folder of checkpoints and events. Defaults to that of `config`, or else to
                a temporary folder.
            n_classes: How many classes there are. Defaults to 2.
            weight_column: Name or numeric column of the feature that weights each row's loss.
                Defaults to `None`, all alike.
            label_vocabulary: The classes' names, where labels are strings. Defaults to `None`:
                labels are integers in [0, n_classes).
            optimizer: A `tf.keras.optimizers.legacy.Optimizer`, one of the names 'Adagrad', 'Adam', 'Ftrl', 'RMSProp',
                'SGD', or a function that returns an optimizer. Defaults to 'Ftrl'; with `None`, its rate follows the
                number of columns.
            config: Configuration of the runs. Defaults to `RunConfig()`.
            warm_start_from: Where first values come from: a checkpoint, a SavedModel or
                `WarmStartSettings`. Defaults to `None`.
            loss_reduction: How the losses of the rows become one, a constant of
                `tf.losses.Reduction`. Defaults to their mean.
            sparse_combiner: `"mean"`, `"sqrtn"` or `"sum"`, the default: how several values of a categorical column in
                one row are combined.

        Raises:
            ValueError: If an argument does not hold.
        """
        super().__init__(
            V2.linear(
                V2.classification_head(n_classes, weight_column, label_vocabulary, loss_reduction),
                feature_columns,
                optimizer=optimizer,
                sparse_combiner=sparse_combiner,
            ),
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )


class LinearRegressor(Estimator):
    """Tells the numbers of a row, by a linear model; mirrors `tf.estimator.LinearRegressor`."""

    def __init__(
        self,
        feature_columns: Iterable[Any],
        model_dir: str | os.PathLike[str] | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = SUM_OVER_BATCH_SIZE,
        sparse_combiner: str = "sum",
    ) -> None:
        """Checks the arguments.

        Args:
            feature_columns: Columns of `tf.feature_column`, dense or categorical.
            model_dir: Folder of checkpoints and events. Defaults to that of `config`, or else to
                a temporary folder.
            label_dimension: How many numbers a row's label has. Defaults to 1.
            weight_column: Name or numeric column of the feature that weights each row's loss.
                Defaults to `None`, all alike.
            optimizer: A `tf.keras.optimizers.legacy.Optimizer`, one of the names 'Adagrad', 'Adam', 'Ftrl', 'RMSProp',
                'SGD', or a function that returns an optimizer. Defaults to 'Ftrl'; with `None`, its rate follows the
                number of columns.
            config: Configuration of the runs. Defaults to `RunConfig()`.
            warm_start_from: Where first values come from: a checkpoint, a SavedModel or
                `WarmStartSettings`. Defaults to `None`.
            loss_reduction: How the losses of the rows become one, a constant of
                `tf.losses.Reduction`. Defaults to their mean.
            sparse_combiner: `"mean"`, `"sqrtn"` or `"sum"`, the default: how several values of a categorical column in
                one row are combined.

        Raises:
            ValueError: If an argument does not hold.
        """
        super().__init__(
            V2.linear(
                V2.regression_head(label_dimension, weight_column, loss_reduction),
                feature_columns,
                optimizer=optimizer,
                sparse_combiner=sparse_combiner,
            ),
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )


class LinearEstimator(Estimator):
    """A head of your own on a linear model; mirrors `tf.estimator.LinearEstimator`.

    Examples:
        Counts, whose logarithm is linear:

        >>> from tfx_tpu_trainer.estimator import LinearEstimator, PoissonRegressionHead, inputs
        >>> import numpy as np
        >>> import tensorflow as tf
        >>> hours = np.array([0.0, 1.0, 2.0], np.float32)
        >>> input_fn = inputs.numpy_input_fn(
        ...     {"hour": hours}, np.array([1, 3, 7]), num_epochs=None, shuffle=False
        ... )
        >>> hour = tf.feature_column.numeric_column("hour")
        >>> estimator = LinearEstimator(PoissonRegressionHead(), [hour], model_dir="runs/counts")
        >>> estimator = estimator.train(input_fn, max_steps=5)
        >>> print(estimator.get_variable_value("linear/linear_model/hour/weights").shape)
        (1, 1)
    """

    def __init__(
        self,
        head: Head,
        feature_columns: Iterable[Any],
        model_dir: str | os.PathLike[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        sparse_combiner: str = "sum",
        warm_start_from: Any = None,
    ) -> None:
        """Checks the arguments.

        Args:
            head: A `Head`: loss, metrics, predictions and signatures.
            feature_columns: Columns of `tf.feature_column`, dense or categorical.
            model_dir: Folder of checkpoints and events. Defaults to that of `config`, or else to
                a temporary folder.
            optimizer: A `tf.keras.optimizers.legacy.Optimizer`, one of the names 'Adagrad', 'Adam', 'Ftrl', 'RMSProp',
                'SGD', or a function that returns an optimizer. Defaults to 'Ftrl'; with `None`, its rate follows the
                number of columns.
            config: Configuration of the runs. Defaults to `RunConfig()`.
            sparse_combiner: `"mean"`, `"sqrtn"` or `"sum"`, the default: how several values of a categorical column in
                one row are combined.
            warm_start_from: Where first values come from: a checkpoint, a SavedModel or
                `WarmStartSettings`. Defaults to `None`.

        Raises:
            ValueError: If an argument does not hold.
        """
        super().__init__(
            V2.linear(
                head,
                feature_columns,
                optimizer=optimizer,
                sparse_combiner=sparse_combiner,
            ),
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )
