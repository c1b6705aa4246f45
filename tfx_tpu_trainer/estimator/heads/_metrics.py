"""The measures of heads, each as a Keras metric and as one of `tf.compat.v1.metrics`.

Heads of `tf.estimator` use Keras metrics, those of `tf.compat.v1.estimator` `tf.compat.v1.metrics`.
The values are equal except for areas under curves, which the two approximate differently.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import tensorflow as tf

from tfx_tpu_trainer._support.imports import without_notice
from tfx_tpu_trainer.estimator.heads._head import MetricKeys

v1 = tf.compat.v1

# Characters that no name scope may have.
_NOT_IN_A_SCOPE = re.compile(r"[^A-Za-z0-9_.\\/-]")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuredBatch:
    """The tensors of one batch that a head measures."""

    # The loss of each row, before weights, [D0, ... DN, dimension].
    losses: tf.Tensor
    # A shape that broadcasts to `losses`.
    weights: tf.Tensor | None
    # As the loss takes them.
    labels: tf.Tensor
    # The predictions that the head's measures need, by prediction key.
    predictions: Mapping[str, tf.Tensor]
    # Scalar or [1].
    regularization_loss: tf.Tensor | None = None


Pick = Callable[[MeasuredBatch], Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measure:
    """One measure of a head."""

    # Its name, without the head's.
    key: str
    # A key of `_KERAS`.
    kind: str
    # Picks the values to average, or the predictions to compare.
    values: Pick
    # Picks the labels to compare with.
    labels: Pick = dataclasses.field(default=lambda seen: seen.labels)
    # Predictions above it are positive; with `None`, predictions are classes.
    threshold: float | None = None

    def keras(self) -> Any:
        """Makes a Keras metric."""
        # Keras 2's metrics, which a graph can update, whichever Keras `tf.keras` is; the import takes a second.
        from tf_keras import metrics

        return _KERAS[self.kind](metrics, self.threshold, scope_name(self.key))

    # Keras's metrics don't branch on tensors, so converting their code would waste seconds.
    @tf.autograph.experimental.do_not_convert
    def update(self, metric: Any, seen: MeasuredBatch) -> None:
        """Updates a metric from `keras` with a batch."""
        weights = _weights_of(self, seen)
        if self.kind in _AVERAGED:
            values = tf.cast(self.values(seen), tf.float32)
            # Keras's Mean would fail only in the session, as it does for losses in the original.
            if weights is not None and self.key != MetricKeys.LOSS_MEAN:
                _check_broadcast(weights, values)
            metric.update_state(values, sample_weight=weights)
        else:
            metric.update_state(self.labels(seen), self.values(seen), sample_weight=weights)

    def streaming(self, seen: MeasuredBatch) -> tuple[tf.Tensor, Any]:
        """Makes a metric of the v1 API: value and update."""
        given = {"weights": _weights_of(self, seen), "name": scope_name(self.key)}
        if self.kind in _AVERAGED:
            values = tf.cast(self.values(seen), tf.float32)
            return _STREAMING_AVERAGES[self.kind](values, given)
        labels, predictions = self.labels(seen), self.values(seen)
        return _STREAMING[self.kind](labels, predictions, self.threshold, given)


def scope_name(key: str) -> str:
    """Returns a metric's key as a valid name scope, since class names may have any character."""
    return _NOT_IN_A_SCOPE.sub("_", key)


def _weights_of(measure: Measure, seen: MeasuredBatch) -> tf.Tensor | None:
    # Regularization belongs to the model, not to a row.
    return None if measure.kind == "regularization" else seen.weights


def _check_broadcast(weights: tf.Tensor, values: tf.Tensor) -> None:
    if weights.shape.rank is None or weights.shape.rank != values.shape.rank:
        return
    for axis, (weight_axis, value_axis) in enumerate(zip(weights.shape, values.shape)):
        if weight_axis not in (None, 1, value_axis) and value_axis is not None:
            raise ValueError(
                f"weights can not be broadcast to values. Mismatch at dim {axis}. "
                f"values.shape={values.shape}, weights.shape={weights.shape}: weights of [D0, D1, "
                "... DN] or [D0, D1, ... DN, 1] go with any values."
            )


def _mean(values: tf.Tensor, given: Mapping[str, Any]) -> tuple[tf.Tensor, Any]:
    return v1.metrics.mean(values, **given)


def _baseline(values: tf.Tensor, given: Mapping[str, Any]) -> tuple[tf.Tensor, Any]:
    value, update = v1.metrics.mean(values, **given)
    return tf.maximum(value, 1.0 - value), tf.maximum(update, 1.0 - update)


def _streaming_accuracy(
    labels: tf.Tensor, predictions: tf.Tensor, threshold: float | None, given: Mapping[str, Any]
) -> tuple[tf.Tensor, Any]:
    if threshold is not None:
        # As in the original, a probability equal to the threshold is positive here, but not for
        # precision, recall and Keras's metrics.
        predictions = tf.cast(tf.greater_equal(predictions, threshold), tf.float32)
    return v1.metrics.accuracy(labels, predictions, **given)


def _streaming_ratio(name: str) -> Callable[..., tuple[tf.Tensor, Any]]:
    def metric(
        labels: tf.Tensor, predictions: tf.Tensor, threshold: float | None, given: Mapping[str, Any]
    ) -> tuple[tf.Tensor, Any]:
        if threshold is None:
            return getattr(v1.metrics, name)(labels, predictions, **given)
        at_thresholds = getattr(v1.metrics, f"{name}_at_thresholds")
        value, update = at_thresholds(labels, predictions, thresholds=(threshold,), **given)
        return tf.squeeze(value), tf.squeeze(update)

    return metric


def _streaming_auc(curve: str) -> Callable[..., tuple[tf.Tensor, Any]]:
    def metric(
        labels: tf.Tensor, predictions: tf.Tensor, threshold: float | None, given: Mapping[str, Any]
    ) -> tuple[tf.Tensor, Any]:
        del threshold
        return without_notice(v1.metrics.auc)(labels, predictions, curve=curve, **given)

    return metric


@functools.cache
def _accuracy_baseline() -> type:
    from tf_keras.metrics import Mean

    class AccuracyBaseline(Mean):
        """The accuracy of always predicting the more frequent of two classes.

        It is updated with the labels; with their mean m, it is the greater of m and 1 - m.
        """

        def result(self) -> Any:
            most = tf.maximum(self.total, self.count - self.total)
            return tf.math.divide_no_nan(most, self.count)

    return AccuracyBaseline


def _keras_accuracy(keras: Any, threshold: float | None, name: str) -> Any:
    if threshold is None:
        return keras.Accuracy(name=name)
    return keras.BinaryAccuracy(name=name, threshold=threshold)


_KERAS: Final[Mapping[str, Callable[[Any, float | None, str], Any]]] = {
    "mean": lambda keras, _, name: keras.Mean(name=name),
    "regularization": lambda keras, _, name: keras.Mean(name=name),
    "baseline": lambda *given: _accuracy_baseline()(name=given[-1]),
    "accuracy": _keras_accuracy,
    "precision": lambda keras, threshold, name: keras.Precision(thresholds=threshold, name=name),
    "recall": lambda keras, threshold, name: keras.Recall(thresholds=threshold, name=name),
    "auc": lambda keras, _, name: keras.AUC(name=name),
    "auc_pr": lambda keras, _, name: keras.AUC(curve="PR", name=name),
}
_STREAMING_AVERAGES: Final = {"mean": _mean, "regularization": _mean, "baseline": _baseline}
_STREAMING: Final = {
    "accuracy": _streaming_accuracy,
    "precision": _streaming_ratio("precision"),
    "recall": _streaming_ratio("recall"),
    "auc": _streaming_auc("ROC"),
    "auc_pr": _streaming_auc("PR"),
}
_AVERAGED: Final = frozenset(_STREAMING_AVERAGES)
