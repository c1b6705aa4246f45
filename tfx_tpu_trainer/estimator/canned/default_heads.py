"""The heads that canned classifiers and regressors make for themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tfx_tpu_trainer.estimator.heads import (
    BinaryClassHead,
    Head,
    MultiClassHead,
    RegressionHead,
    v1,
)

SUM_OVER_BATCH_SIZE: Final = "sum_over_batch_size"


def classification_head(
    *,
    n_classes: int,
    weight_column: Any,
    label_vocabulary: Sequence[str] | None,
    loss_reduction: str,
) -> Head:
    """Returns the head of a classifier of `tf.estimator`.

    Args:
        n_classes: How many classes there are; 2 have one logit.
        weight_column: Name or numeric column of the rows' weights, or `None`.
        label_vocabulary: The classes' names, or `None`.
        loss_reduction: Of `tf.losses.Reduction`.
    """
    options: dict[str, Any] = {
        "weight_column": weight_column,
        "label_vocabulary": label_vocabulary,
        "loss_reduction": loss_reduction,
    }
    if n_classes == 2:
        return BinaryClassHead(**options)
    return MultiClassHead(n_classes, **options)


def regression_head(*, label_dimension: int, weight_column: Any, loss_reduction: str) -> Head:
    """Returns the head of a regressor of `tf.estimator`.

    Args:
        label_dimension: How many numbers a label has.
        weight_column: Name or numeric column of the rows' weights, or `None`.
        loss_reduction: Of `tf.losses.Reduction`.
    """
    return RegressionHead(label_dimension, weight_column, loss_reduction=loss_reduction)


def v1_classification_head(
    *,
    n_classes: int,
    weight_column: Any,
    label_vocabulary: Sequence[str] | None,
    loss_reduction: str,
) -> Head:
    """As `classification_head`, of `tf.compat.v1.estimator`."""
    return v1.binary_or_multi_class_head(n_classes, weight_column, label_vocabulary, loss_reduction)


def v1_regression_head(*, label_dimension: int, weight_column: Any, loss_reduction: str) -> Head:
    """As `regression_head`, of `tf.compat.v1.estimator`."""
    return v1.RegressionHead(label_dimension, weight_column, loss_reduction)
