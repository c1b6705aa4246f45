"""The linear estimators of `tf.compat.v1.estimator`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator.canned.columns import check_linear_columns
from tfx_tpu_trainer.estimator.canned.default_heads import (
    v1_classification_head,
    v1_regression_head,
)
from tfx_tpu_trainer.estimator.canned.linear_model import v1_linear_model_fn
from tfx_tpu_trainer.estimator.estimator import Estimator
from tfx_tpu_trainer.estimator.heads import Head
from tfx_tpu_trainer.estimator.run_config import RunConfig

v1 = tf.compat.v1


class LinearClassifier(Estimator):
    """Tells which class a row is of, by a linear model.

    Mirrors `tf.compat.v1.estimator.LinearClassifier`.
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
            optimizer: A `tf.compat.v1.train.Optimizer`, one of the names 'Adagrad', 'Adam',
                'Ftrl', 'RMSProp', 'SGD', or a function that gives an optimizer. Defaults to
                'Ftrl'; with `None`, its rate follows the number of columns.
            config: Configuration of the runs. Defaults to `RunConfig()`.
            partitioner: How variables are cut over parameter servers. Defaults to `None`: into
                slices of at least 64 MB.
            warm_start_from: Where first values come from: a checkpoint, a SavedModel or
                `WarmStartSettings`. Defaults to `None`.
            loss_reduction: How the losses of the rows become one, a constant of
                `tf.compat.v1.losses.Reduction`. Defaults to their sum.
            sparse_combiner: `"mean"`, `"sqrtn"` or `"sum"`, the default: how several values of a
                categorical column in one row are put together.

        Raises:
            ValueError: If an argument does not hold.
        """
        model_fn = v1_linear_model_fn(
            head=v1_classification_head(
                n_classes=n_classes,
                weight_column=weight_column,
                label_vocabulary=label_vocabulary,
                loss_reduction=loss_reduction,
            ),
            columns=check_linear_columns(feature_columns, allow_v1=True),
            optimizer=optimizer,
            partitioner=partitioner,
            sparse_combiner=sparse_combiner,
        )
        super().__init__(
            model_fn, model_dir=model_dir, config=config, warm_start_from=warm_start_from
        )


class LinearRegressor(Estimator):
    """Tells the numbers of a row, by a linear model.

    Mirrors `tf.compat.v1.estimator.LinearRegressor`.
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
        """Checks the arguments.

        Args:
            feature_columns: Columns of `tf.feature_column`, dense or categorical.
            model_dir: Folder of checkpoints and events. Defaults to that of `config`, or else to
                a temporary folder.
            label_dimension: How many numbers a row's label has. Defaults to 1.
            weight_column: Name or numeric column of the feature that weights each row's loss.
                Defaults to `None`, all alike.
            optimizer: A `tf.compat.v1.train.Optimizer`, one of the names 'Adagrad', 'Adam',
                'Ftrl', 'RMSProp', 'SGD', or a function that gives an optimizer. Defaults to
                'Ftrl'; with `None`, its rate follows the number of columns.
            config: Configuration of the runs. Defaults to `RunConfig()`.
            partitioner: How variables are cut over parameter servers. Defaults to `None`: into
                slices of at least 64 MB.
            warm_start_from: Where first values come from: a checkpoint, a SavedModel or
                `WarmStartSettings`. Defaults to `None`.
            loss_reduction: How the losses of the rows become one, a constant of
                `tf.compat.v1.losses.Reduction`. Defaults to their sum.
            sparse_combiner: `"mean"`, `"sqrtn"` or `"sum"`, the default: how several values of a
                categorical column in one row are put together.

        Raises:
            ValueError: If an argument does not hold.
        """
        model_fn = v1_linear_model_fn(
            head=v1_regression_head(
                label_dimension=label_dimension,
                weight_column=weight_column,
                loss_reduction=loss_reduction,
            ),
            columns=check_linear_columns(feature_columns, allow_v1=True),
            optimizer=optimizer,
            partitioner=partitioner,
            sparse_combiner=sparse_combiner,
        )
        super().__init__(
            model_fn, model_dir=model_dir, config=config, warm_start_from=warm_start_from
        )


class LinearEstimator(Estimator):
    """A head of your own on a linear model; mirrors `tf.compat.v1.estimator.LinearEstimator`."""

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
        """Checks the arguments.

        Args:
            head: A `Head`: loss, metrics, predictions and signatures.
            feature_columns: Columns of `tf.feature_column`, dense or categorical.
            model_dir: Folder of checkpoints and events. Defaults to that of `config`, or else to
                a temporary folder.
            optimizer: A `tf.compat.v1.train.Optimizer`, one of the names 'Adagrad', 'Adam',
                'Ftrl', 'RMSProp', 'SGD', or a function that gives an optimizer. Defaults to
                'Ftrl'; with `None`, its rate follows the number of columns.
            config: Configuration of the runs. Defaults to `RunConfig()`.
            partitioner: How variables are cut over parameter servers. Defaults to `None`: into
                slices of at least 64 MB.
            sparse_combiner: `"mean"`, `"sqrtn"` or `"sum"`, the default: how several values of a
                categorical column in one row are put together.
            warm_start_from: Where first values come from: a checkpoint, a SavedModel or
                `WarmStartSettings`. Defaults to `None`.

        Raises:
            ValueError: If an argument does not hold.
        """
        model_fn = v1_linear_model_fn(
            head=head,
            columns=check_linear_columns(feature_columns, allow_v1=True),
            optimizer=optimizer,
            partitioner=partitioner,
            sparse_combiner=sparse_combiner,
        )
        super().__init__(
            model_fn, model_dir=model_dir, config=config, warm_start_from=warm_start_from
        )
