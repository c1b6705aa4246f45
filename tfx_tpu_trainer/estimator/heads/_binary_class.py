"""One of two classes for each row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._number_checks import as_items
from tfx_tpu_trainer.estimator.export._outputs import ExportOutput, PredictOutput, RegressionOutput
from tfx_tpu_trainer.estimator.heads import _classes, _labels, _losses, _shapes
from tfx_tpu_trainer.estimator.heads._keys import MetricKeys, PredictionKeys, SignatureKeys
from tfx_tpu_trainer.estimator.heads._metrics import Measure
from tfx_tpu_trainer.estimator.heads._single_head import SingleHead

v1 = tf.compat.v1

_N_CLASSES = 2
_KEYS = (
    PredictionKeys.LOGITS,
    PredictionKeys.LOGISTIC,
    PredictionKeys.PROBABILITIES,
    PredictionKeys.CLASS_IDS,
    PredictionKeys.CLASSES,
    PredictionKeys.ALL_CLASS_IDS,
    PredictionKeys.ALL_CLASSES,
)

# Measured at each threshold: key, with its place, and kind.
AT_THRESHOLD = (
    (MetricKeys.ACCURACY_AT_THRESHOLD, "accuracy"),
    (MetricKeys.PRECISION_AT_THRESHOLD, "precision"),
    (MetricKeys.RECALL_AT_THRESHOLD, "recall"),
)


class BinaryClassHead(SingleHead):
    """Sigmoid cross entropy for two classes; mirrors `tf.estimator.BinaryClassHead`.

    Takes logits [D0, ... DN, 1], labels [D0, ... DN, 1] or [D0, ... DN], and weights of either
    shape. Labels are numbers from 0 to 1, or strings of the vocabulary.

    Examples:
        >>> from tfx_tpu_trainer.estimator import BinaryClassHead
        >>> import tensorflow as tf
        >>> head = BinaryClassHead(label_vocabulary=["no", "yes"])
        >>> predictions = head.predictions(tf.constant([[-2.0], [3.0]]))
        >>> print(predictions["classes"].numpy().tolist())
        [[b'no'], [b'yes']]
        >>> print(predictions["logistic"].numpy().round(2))
        [[0.12]
         [0.95]]
    """

    def __init__(
        self,
        weight_column: Any = None,
        thresholds: Iterable[float] | None = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = _losses.SUM_OVER_BATCH_SIZE,
        loss_fn: Callable[..., Any] | None = None,
        name: str | None = None,
    ) -> None:
        """Checks the arguments.

        Args:
            weight_column: Name of the feature that holds the rows' weights, or a
                `tf.feature_column.numeric_column`. Defaults to `None`.
            thresholds: Probabilities in (0, 1) at which accuracy, precision and recall are
                measured besides. Defaults to `None`.
            label_vocabulary: The two labels' strings, in the order of their ids. Defaults to
                `None`: labels are numbers.
            loss_reduction: `"sum_over_batch_size"` or `"sum"`. Defaults to the former.
            loss_fn: Takes `labels` and `logits`, and `features` and `loss_reduction` if it names
                them; gives the rows' losses, [D0, ... DN, 1]. Defaults to `None`.
            name: Put at the end of the names of metrics and summaries. Defaults to `None`.

        Raises:
            ValueError: If an argument is not what it must be.
            TypeError: If `weight_column` is neither a name nor a numeric column.
        """
        super().__init__(
            weight_column=weight_column, loss_reduction=loss_reduction, loss_fn=loss_fn, name=name
        )
        self._label_vocabulary = _labels.check_vocabulary(label_vocabulary)
        thresholds = as_items("thresholds", thresholds, "[0.3, 0.7]")
        self._thresholds = _classes.check_thresholds(
            thresholds, f"thresholds not in (0, 1): {(thresholds,)}."
        )

    @property
    def logits_dimension(self) -> int:
        """One."""
        return 1

    def predictions(self, logits: Any, keys: Sequence[str] | None = None) -> dict[str, tf.Tensor]:
        """Returns logits, probabilities and classes; see `Head.predictions`."""
        keys = _classes.check_keys(keys, _KEYS)
        logits = _shapes.check_logits(logits, self.logits_dimension)
        with v1.name_scope(None, "predictions"):
            two_logits = tf.concat((tf.zeros_like(logits), logits), -1, name="two_class_logits")
            makers = {
                PredictionKeys.LOGITS: lambda: logits,
                PredictionKeys.LOGISTIC: lambda: tf.sigmoid(logits, name="logistic"),
                PredictionKeys.PROBABILITIES: lambda: tf.nn.softmax(
                    two_logits, name="probabilities"
                ),
                PredictionKeys.CLASS_IDS: lambda: _classes.best_class_ids(two_logits),
                PredictionKeys.CLASSES: lambda: _classes.class_names(
                    _classes.best_class_ids(two_logits), _N_CLASSES, self._label_vocabulary
                ),
                PredictionKeys.ALL_CLASS_IDS: lambda: _classes.all_class_ids(logits, _N_CLASSES),
                PredictionKeys.ALL_CLASSES: lambda: _classes.all_classes(
                    logits, _N_CLASSES, self._label_vocabulary
                ),
            }
            return {key: makers[key]() for key in _KEYS if key in keys}

    def _processed_labels(self, logits: tf.Tensor, given: Any) -> tf.Tensor:
        dense = _labels.dense_labels(given, logits, 1)
        if self._label_vocabulary is not None:
            dense = _labels.class_ids(dense, self._label_vocabulary)
        elif dense.dtype == tf.string:
            raise ValueError(
                f"Labels dtype should be a number without a vocabulary. Instead got {dense}: give "
                "the head a label_vocabulary."
            )
        return _labels.in_range(tf.cast(dense, tf.float32), _N_CLASSES)

    def _own_losses(self, logits: tf.Tensor, processed: tf.Tensor) -> tf.Tensor:
        return tf.nn.sigmoid_cross_entropy_with_logits(labels=processed, logits=logits)

    def _predictions_to_measure(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        return self.predictions(logits, [PredictionKeys.CLASS_IDS, PredictionKeys.LOGISTIC])

    def _measures(self) -> tuple[Measure, ...]:
        return (
            Measure(key=MetricKeys.LOSS_MEAN, kind="mean", values=lambda seen: seen.losses),
            Measure(key=MetricKeys.ACCURACY, kind="accuracy", values=_class_ids),
            Measure(key=MetricKeys.PRECISION, kind="precision", values=_class_ids),
            Measure(key=MetricKeys.RECALL, kind="recall", values=_class_ids),
            Measure(key=MetricKeys.PREDICTION_MEAN, kind="mean", values=_logistic),
            Measure(key=MetricKeys.LABEL_MEAN, kind="mean", values=lambda seen: seen.labels),
            Measure(
                key=MetricKeys.ACCURACY_BASELINE,
                kind="baseline",
                values=lambda seen: seen.labels,
            ),
            Measure(key=MetricKeys.AUC, kind="auc", values=_logistic),
            Measure(key=MetricKeys.AUC_PR, kind="auc_pr", values=_logistic),
            *(
                Measure(key=key % threshold, kind=kind, values=_logistic, threshold=threshold)
                for threshold in self._thresholds
                for key, kind in AT_THRESHOLD
            ),
        )

    def _export_outputs(self, predictions: dict[str, tf.Tensor]) -> dict[str, ExportOutput]:
        classifier = _classes.classification_output(
            predictions[PredictionKeys.PROBABILITIES], _N_CLASSES, self._label_vocabulary
        )
        return {
            SignatureKeys.DEFAULT: classifier,
            SignatureKeys.CLASSIFY: classifier,
            SignatureKeys.REGRESS: RegressionOutput(predictions[PredictionKeys.LOGISTIC]),
            SignatureKeys.PREDICT: PredictOutput(predictions),
        }


def _class_ids(seen: Any) -> tf.Tensor:
    return seen.predictions[PredictionKeys.CLASS_IDS]


def _logistic(seen: Any) -> tf.Tensor:
    return seen.predictions[PredictionKeys.LOGISTIC]
