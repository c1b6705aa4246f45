"""Metrics in contrib's order of arguments, predictions first, on those of `tf.compat.v1.metrics`."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.imports import without_notice

metrics = tf.compat.v1.metrics
Metric = Callable[..., tuple[Any, Any]]

_PAIR = "predictions labels"
_ENDS = "metrics_collections=None updates_collections=None name=None"


def _metric(name: str, arguments: str, of: Metric, renamed: str = "") -> Metric:
    """Makes a metric of contrib's arguments."""
    other = dict(each.split(":") for each in renamed.split())
    parameters = []
    for each in arguments.split():
        label, _, default = each.partition("=")
        value = ast.literal_eval(default) if default else inspect.Parameter.empty
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(inspect.Parameter(label, kind, default=value))
    signature = inspect.Signature(parameters)

    def metric(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        bound = signature.bind(*args, **kwargs).arguments
        return without_notice(of)(
            **{other.get(label, label): value for label, value in bound.items()}
        )

    metric.__signature__ = signature  # type: ignore[attr-defined]
    metric.__name__ = metric.__qualname__ = name
    theirs = f"tf.compat.v1.metrics.{of.__name__}"
    metric.__doc__ = f"Returns the value and the update op of `{theirs}`, with contrib's arguments."
    return metric


_OF_PAIRS = f"{_PAIR} weights=None {_ENDS}"
_AT_K = f"{_PAIR} k class_id=None weights=None {_ENDS}"

streaming_accuracy = _metric("streaming_accuracy", _OF_PAIRS, metrics.accuracy)
streaming_auc = _metric(
    "streaming_auc",
    f"{_PAIR} weights=None num_thresholds=200 metrics_collections=None updates_collections=None curve='ROC' "
    "name=None",
    metrics.auc,
)
streaming_false_negatives = _metric("streaming_false_negatives", _OF_PAIRS, metrics.false_negatives)
streaming_false_positives = _metric("streaming_false_positives", _OF_PAIRS, metrics.false_positives)
streaming_mean = _metric("streaming_mean", f"values weights=None {_ENDS}", metrics.mean)
streaming_mean_absolute_error = _metric(
    "streaming_mean_absolute_error", _OF_PAIRS, metrics.mean_absolute_error
)
streaming_mean_cosine_distance = _metric(
    "streaming_mean_cosine_distance",
    f"{_PAIR} dim weights=None {_ENDS}",
    metrics.mean_cosine_distance,
)
streaming_mean_iou = _metric(
    "streaming_mean_iou", f"{_PAIR} num_classes weights=None {_ENDS}", metrics.mean_iou
)
streaming_mean_relative_error = _metric(
    "streaming_mean_relative_error",
    f"{_PAIR} normalizer weights=None {_ENDS}",
    metrics.mean_relative_error,
)
streaming_mean_squared_error = _metric(
    "streaming_mean_squared_error", _OF_PAIRS, metrics.mean_squared_error
)
streaming_mean_tensor = _metric(
    "streaming_mean_tensor", f"values weights=None {_ENDS}", metrics.mean_tensor
)
streaming_percentage_less = _metric(
    "streaming_percentage_less",
    f"values threshold weights=None {_ENDS}",
    metrics.percentage_below,
)
streaming_precision = _metric("streaming_precision", _OF_PAIRS, metrics.precision)
streaming_precision_at_thresholds = _metric(
    "streaming_precision_at_thresholds",
    f"{_PAIR} thresholds weights=None {_ENDS}",
    metrics.precision_at_thresholds,
)
streaming_recall = _metric("streaming_recall", _OF_PAIRS, metrics.recall)
streaming_recall_at_thresholds = _metric(
    "streaming_recall_at_thresholds",
    f"{_PAIR} thresholds weights=None {_ENDS}",
    metrics.recall_at_thresholds,
)
streaming_root_mean_squared_error = _metric(
    "streaming_root_mean_squared_error", _OF_PAIRS, metrics.root_mean_squared_error
)
streaming_sensitivity_at_specificity = _metric(
    "streaming_sensitivity_at_specificity",
    f"{_PAIR} specificity weights=None num_thresholds=200 {_ENDS}",
    metrics.sensitivity_at_specificity,
)
streaming_sparse_precision_at_k = _metric(
    "streaming_sparse_precision_at_k", _AT_K, metrics.precision_at_k
)
streaming_sparse_recall_at_k = _metric("streaming_sparse_recall_at_k", _AT_K, metrics.recall_at_k)
streaming_specificity_at_sensitivity = _metric(
    "streaming_specificity_at_sensitivity",
    f"{_PAIR} sensitivity weights=None num_thresholds=200 {_ENDS}",
    metrics.specificity_at_sensitivity,
)
streaming_true_negatives = _metric("streaming_true_negatives", _OF_PAIRS, metrics.true_negatives)
streaming_true_positives = _metric("streaming_true_positives", _OF_PAIRS, metrics.true_positives)
