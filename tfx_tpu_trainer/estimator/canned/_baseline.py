"""The baseline estimators of `tf.estimator`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from tfx_tpu_trainer.estimator._estimator import Estimator
from tfx_tpu_trainer.estimator._run_config import RunConfig
from tfx_tpu_trainer.estimator.canned._forms import SUM_OVER_BATCH_SIZE, V2
from tfx_tpu_trainer.estimator.heads import Head


class BaselineClassifier(Estimator):
    """Tells which class a row is of, by a bias, the same for all rows.

    Mirrors `tf.estimator.BaselineClassifier`.

    Examples:
        Three rows of four are of class 1, so that is what it says of each:

        >>> from tfx_tpu_trainer.estimator import BaselineClassifier, inputs
        >>> import numpy as np
        >>> input_fn = inputs.numpy_input_fn(
        ...     {"x": np.zeros(4)}, np.array([0, 1, 1, 1]), num_epochs=None, shuffle=False
        ... )
        >>> estimator = BaselineClassifier(model_dir="runs/baseline")
        >>> metrics = estimator.train(input_fn, max_steps=20).evaluate(input_fn, steps=1)
        >>> print(metrics["accuracy"], metrics["label/mean"])
        0.75 0.75
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: str = SUM_OVER_BATCH_SIZE,
    ) -> None:
        """Checks the arguments.

        Args:
            model_dir: Folder of checkpoints and events. Defaults to that of `config`, or else to
                a temporary folder.
            n_classes: How many classes there are. Defaults to 2.
            weight_column: Name or numeric column of the feature that weights each row's loss.
                Defaults to `None`, all alike.
            label_vocabulary: The classes' names, where labels are strings. Defaults to `None`:
                labels are integers in [0, n_classes).
            optimizer: A `tf.keras.optimizers.legacy.Optimizer`, one of the names 'Adagrad', 'Adam', 'Ftrl', 'RMSProp',
                'SGD', or a function that returns an optimizer. Defaults to 'Ftrl'.
            config: Configuration of the runs. Defaults to `RunConfig()`.
            loss_reduction: How the losses of the rows become one, a constant of
                `tf.losses.Reduction`. Defaults to their mean.

        Raises:
            ValueError: If an argument does not hold.
        """
        super().__init__(
            V2.baseline(
                V2.classification_head(n_classes, weight_column, label_vocabulary, loss_reduction),
                optimizer=optimizer,
                weight_column=weight_column,
            ),
            model_dir=model_dir,
            config=config,
        )


class BaselineRegressor(Estimator):
    """Tells the numbers of a row, by a bias, the same for all rows.

    Mirrors `tf.estimator.BaselineRegressor`.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: str = SUM_OVER_BATCH_SIZE,
    ) -> None:
        """Checks the arguments.

        Args:
            model_dir: Folder of checkpoints and events. Defaults to that of `config`, or else to
                a temporary folder.
            label_dimension: How many numbers a row's label has. Defaults to 1.
            weight_column: Name or numeric column of the feature that weights each row's loss.
                Defaults to `None`, all alike.
            optimizer: A `tf.keras.optimizers.legacy.Optimizer`, one of the names 'Adagrad', 'Adam', 'Ftrl', 'RMSProp',
                'SGD', or a function that returns an optimizer. Defaults to 'Ftrl'.
            config: Configuration of the runs. Defaults to `RunConfig()`.
            loss_reduction: How the losses of the rows become one, a constant of
                `tf.losses.Reduction`. Defaults to their mean.

        Raises:
            ValueError: If an argument does not hold.
        """
        super().__init__(
            V2.baseline(
                V2.regression_head(label_dimension, weight_column, loss_reduction),
                optimizer=optimizer,
                weight_column=weight_column,
            ),
            model_dir=model_dir,
            config=config,
        )


class BaselineEstimator(Estimator):
    """A head of your own on a bias, the same for all rows.

    Mirrors `tf.estimator.BaselineEstimator`.
    """

    def __init__(
        self,
        head: Head,
        model_dir: str | os.PathLike[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
    ) -> None:
        """Checks the arguments.

        Args:
            head: A `Head`: loss, metrics, predictions and signatures.
            model_dir: Folder of checkpoints and events. Defaults to that of `config`, or else to
                a temporary folder.
            optimizer: A `tf.keras.optimizers.legacy.Optimizer`, one of the names 'Adagrad', 'Adam', 'Ftrl', 'RMSProp',
                'SGD', or a function that returns an optimizer. Defaults to 'Ftrl'.
            config: Configuration of the runs. Defaults to `RunConfig()`.

        Raises:
            ValueError: If an argument does not hold.
        """
        super().__init__(
            V2.baseline(
                head,
                optimizer=optimizer,
            ),
            model_dir=model_dir,
            config=config,
        )
