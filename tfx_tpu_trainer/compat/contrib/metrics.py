"""Metrics in contrib's order of arguments, predictions first, on those of `tf.compat.v1.metrics`."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.imports import without_notice

__all__ = [
    "aggregate_metric_map",
    "confusion_matrix",
    "streaming_accuracy",
    "streaming_auc",
    "streaming_concat",
    "streaming_covariance",
    "streaming_false_negatives",
    "streaming_false_positives",
    "streaming_mean",
    "streaming_mean_absolute_error",
    "streaming_mean_cosine_distance",
    "streaming_mean_iou",
    "streaming_mean_relative_error",
    "streaming_mean_squared_error",
    "streaming_mean_tensor",
    "streaming_pearson_correlation",
    "streaming_percentage_less",
    "streaming_precision",
    "streaming_precision_at_thresholds",
    "streaming_recall",
    "streaming_recall_at_thresholds",
    "streaming_root_mean_squared_error",
    "streaming_sensitivity_at_specificity",
    "streaming_sparse_precision_at_k",
    "streaming_sparse_recall_at_k",
    "streaming_specificity_at_sensitivity",
    "streaming_true_negatives",
    "streaming_true_positives",
]

v1 = tf.compat.v1
metrics = v1.metrics
Metric = Callable[..., tuple[Any, Any]]


def _metric(of: Metric, name: str | None = None) -> Metric:
    """Makes a metric with contrib's arguments, predictions first and none after the name."""
    arguments = dict(inspect.signature(of).parameters)
    first = [arguments.pop(each) for each in ("predictions", "labels") if each in arguments]
    places = list(arguments).index("name") + 1
    signature = inspect.Signature([*first, *list(arguments.values())[:places]])

    def metric(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        bound = signature.bind(*args, **kwargs).arguments
        return without_notice(of)(**bound)

    metric.__signature__ = signature  # type: ignore[attr-defined]
    metric.__name__ = metric.__qualname__ = name or f"streaming_{of.__name__}"
    theirs = f"tf.compat.v1.metrics.{of.__name__}"
    metric.__doc__ = f"Returns the value and the update op of `{theirs}`, with contrib's arguments."
    return metric


streaming_accuracy = _metric(metrics.accuracy)
streaming_auc = _metric(metrics.auc)
streaming_false_negatives = _metric(metrics.false_negatives)
streaming_false_positives = _metric(metrics.false_positives)
streaming_mean = _metric(metrics.mean)
streaming_mean_absolute_error = _metric(metrics.mean_absolute_error)
streaming_mean_cosine_distance = _metric(metrics.mean_cosine_distance)
streaming_mean_iou = _metric(metrics.mean_iou)
streaming_mean_relative_error = _metric(metrics.mean_relative_error)
streaming_mean_squared_error = _metric(metrics.mean_squared_error)
streaming_mean_tensor = _metric(metrics.mean_tensor)
streaming_percentage_less = _metric(metrics.percentage_below, "streaming_percentage_less")
streaming_precision = _metric(metrics.precision)
streaming_precision_at_thresholds = _metric(metrics.precision_at_thresholds)
streaming_recall = _metric(metrics.recall)
streaming_recall_at_thresholds = _metric(metrics.recall_at_thresholds)
streaming_root_mean_squared_error = _metric(metrics.root_mean_squared_error)
streaming_sensitivity_at_specificity = _metric(metrics.sensitivity_at_specificity)
streaming_sparse_precision_at_k = _metric(metrics.precision_at_k, "streaming_sparse_precision_at_k")
streaming_sparse_recall_at_k = _metric(metrics.recall_at_k, "streaming_sparse_recall_at_k")
streaming_specificity_at_sensitivity = _metric(metrics.specificity_at_sensitivity)
streaming_true_negatives = _metric(metrics.true_negatives)
streaming_true_positives = _metric(metrics.true_positives)


_Pair = tuple[Any, Any]


def _state(name: str) -> tf.Variable:
    """Makes a metric's variable, which is local and whose copies are summed."""
    return v1.Variable(
        lambda: tf.zeros([]),
        trainable=False,
        collections=[v1.GraphKeys.LOCAL_VARIABLES, v1.GraphKeys.METRIC_VARIABLES],
        name=name,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=v1.VariableAggregation.SUM,
    )


def _collected(pair: _Pair, metrics_collections: Any, updates_collections: Any) -> _Pair:
    value, update = pair
    if metrics_collections:
        v1.add_to_collections(metrics_collections, value)
    if updates_collections:
        v1.add_to_collections(updates_collections, update)
    return pair


def _matched(predictions: Any, labels: Any, weights: Any) -> tuple[Any, Any, Any]:
    """Returns all three as float32 of one shape; drops a superfluous last axis of size 1."""
    predictions = tf.cast(tf.convert_to_tensor(predictions), tf.float32)
    labels = tf.cast(tf.convert_to_tensor(labels), tf.float32)
    ranks = predictions.shape.rank, labels.shape.rank
    if None not in ranks and abs(ranks[0] - ranks[1]) == 1:
        if ranks[0] > ranks[1]:
            predictions = tf.squeeze(predictions, [-1])
        else:
            labels = tf.squeeze(labels, [-1])
    predictions.shape.assert_is_compatible_with(labels.shape)
    if weights is not None:
        weights = tf.cast(tf.convert_to_tensor(weights), tf.float32)
        if weights.shape.rank is not None and labels.shape.rank is not None:
            if weights.shape.rank == labels.shape.rank + 1:
                weights = tf.squeeze(weights, [-1])
            elif 0 < weights.shape.rank == labels.shape.rank - 1:
                weights = tf.expand_dims(weights, -1)
        weights = tf.broadcast_to(weights, tf.shape(labels))
    return predictions, labels, weights


def streaming_covariance(
    predictions: Any,
    labels: Any,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> _Pair:
    """Computes the covariance of predictions and labels, over all batches.

    Uses the pairwise update of Chan, Golub and LeVeque, as `tf.contrib.metrics` did in TensorFlow 1.15.

    Args:
        predictions: Numbers.
        labels: Numbers, of the same shape.
        weights: A weight for each. Defaults to `None`, all 1.
        metrics_collections: Collections of the value. Defaults to `None`.
        updates_collections: Collections of the update op. Defaults to `None`.
        name: The variable scope. Defaults to `None`, `covariance`.

    Returns:
        The value, NaN for fewer than two rows, and the update op.
    """
    with v1.variable_scope(name, "covariance", [predictions, labels, weights]):
        predictions, labels, weights = _matched(predictions, labels, weights)
        count, mean_p, mean_l, comoment = (
            _state(each) for each in ("count", "mean_prediction", "mean_label", "comoment")
        )
        weights = tf.ones_like(labels) if weights is None else weights
        here = tf.reduce_sum(weights)

        def mean_of(values: tf.Tensor) -> tf.Tensor:
            return tf.math.divide_no_nan(tf.reduce_sum(values * weights), here)

        mean_p_here, mean_l_here = mean_of(predictions), mean_of(labels)
        comoment_here = tf.reduce_sum(
            (predictions - mean_p_here) * (labels - mean_l_here) * weights
        )
        # Chan, Golub and LeVeque: the comoment of two parts with n and m rows is the sum of both comoments and of
        # (mean_p1 - mean_p2) * (mean_l1 - mean_l2) * n * m / (n + m); `before` is n, `share` m / (n + m). All are read
        # before one is written.
        before, old_p, old_l = (tf.identity(each) for each in (count, mean_p, mean_l))
        total = before + here
        with tf.control_dependencies([before, old_p, old_l]):
            share = tf.math.divide_no_nan(here, total)
            written = [
                v1.assign_add(count, here),
                v1.assign_add(mean_p, (mean_p_here - old_p) * share),
                v1.assign_add(mean_l, (mean_l_here - old_l) * share),
                v1.assign_add(
                    comoment,
                    comoment_here + (old_p - mean_p_here) * (old_l - mean_l_here) * before * share,
                ),
            ]

        def covariance(label: str) -> tf.Tensor:
            rows, moment = tf.identity(count), tf.identity(comoment)
            return tf.where(rows <= 1.0, float("nan"), moment / (rows - 1.0), name=label)

        value = covariance("covariance")
        with tf.control_dependencies(written):
            update = covariance("update_op")
        return _collected((value, update), metrics_collections, updates_collections)


def streaming_pearson_correlation(
    predictions: Any,
    labels: Any,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> _Pair:
    """Computes Pearson's correlation of predictions and labels, over all batches.

    Args:
        predictions: Numbers.
        labels: Numbers, of the same shape.
        weights: A weight for each. Defaults to `None`, all 1.
        metrics_collections: Collections of the value. Defaults to `None`.
        updates_collections: Collections of the update op. Defaults to `None`.
        name: The variable scope. Defaults to `None`, `pearson_r`.

    Returns:
        The value, NaN for fewer than two rows, and the update op.
    """
    with v1.variable_scope(name, "pearson_r", [predictions, labels, weights]):
        predictions, labels, weights = _matched(predictions, labels, weights)
        both, update_both = streaming_covariance(predictions, labels, weights, name="covariance")
        first, update_first = streaming_covariance(
            predictions, predictions, weights, name="variance_predictions"
        )
        second, update_second = streaming_covariance(
            labels, labels, weights, name="variance_labels"
        )
        value = tf.divide(both, tf.sqrt(first) * tf.sqrt(second), name="pearson_r")
        update = tf.divide(
            update_both, tf.sqrt(update_first) * tf.sqrt(update_second), name="update_op"
        )
        return _collected((value, update), metrics_collections, updates_collections)


def streaming_concat(
    values: Any,
    axis: int = 0,
    max_size: int | None = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> _Pair:
    """Concatenates the values of all batches.

    Args:
        values: A tensor whose sizes are known, except along `axis`.
        axis: The axis along which batches follow each other. Defaults to 0.
        max_size: How many values to keep, the first ones. Defaults to `None`, all.
        metrics_collections: Collections of the value. Defaults to `None`.
        updates_collections: Collections of the update op. Defaults to `None`.
        name: The variable scope. Defaults to `None`, `streaming_concat`.

    Returns:
        The concatenated values, and the update op, which returns their number.

    Raises:
        ValueError: If a size is not known, or the axis does not exist.
    """
    with v1.variable_scope(name, "streaming_concat", [values]):
        values = tf.convert_to_tensor(values)
        rank = values.shape.rank
        if rank is None or not -rank <= axis < rank:
            raise ValueError(
                f"streaming_concat takes an axis of values of known rank; got {axis} of {rank}."
            )
        axis %= rank
        fixed = [each for at, each in enumerate(values.shape) if at != axis]
        if None in fixed:
            raise ValueError(
                f"All sizes but that of axis {axis} must be known; the shape is {values.shape}."
            )
        # The axis comes first, and the variable grows along it.
        array = v1.Variable(
            lambda: tf.zeros([0, *fixed], values.dtype),
            trainable=False,
            collections=[v1.GraphKeys.LOCAL_VARIABLES, v1.GraphKeys.METRIC_VARIABLES],
            name="array",
            shape=tf.TensorShape([None, *fixed]),
            validate_shape=False,
        )
        order = [axis, *(at for at in range(rank) if at != axis)]
        back = [order.index(at) for at in range(rank)]
        value = tf.transpose(array.read_value(), back, name="concat")
        moved = tf.transpose(values, order)
        joined = tf.concat([array.read_value(), moved], 0)
        written = array.assign(joined if max_size is None else joined[:max_size], read_value=False)
        with tf.control_dependencies([written]):
            update = tf.shape(array.read_value())[0]
        return _collected((value, update), metrics_collections, updates_collections)


def aggregate_metric_map(
    names_to_tuples: Mapping[str, _Pair],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the values, and the update ops, of several metrics by name.

    Args:
        names_to_tuples: Name -> metric.
    """
    values = {name: value for name, (value, _) in names_to_tuples.items()}
    return values, {name: update for name, (_, update) in names_to_tuples.items()}


def confusion_matrix(
    labels: Any,
    predictions: Any,
    num_classes: int | None = None,
    dtype: Any = tf.int32,
    name: str | None = None,
    weights: Any = None,
) -> tf.Tensor:
    """Counts how often each class was predicted for each label, in one batch.

    Args:
        labels: Classes, a vector of integers.
        predictions: A class for each label.
        num_classes: The number of classes. Defaults to `None`, those that occur.
        dtype: The counts' type. Defaults to int32.
        name: The ops' name scope. Defaults to `None`.
        weights: A weight for each. Defaults to `None`, all 1.

    Returns:
        A matrix: a row for each label, a column for each prediction.
    """
    return v1.confusion_matrix(labels, predictions, num_classes, dtype, name, weights)
