"""A head that predicts any number of classes for each row."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._number_checks import as_items
from tfx_tpu_trainer.estimator.export._outputs import ExportOutput
from tfx_tpu_trainer.estimator.heads import _classes, _losses
from tfx_tpu_trainer.estimator.heads._classification import AT_THRESHOLD
from tfx_tpu_trainer.estimator.heads._head import MetricKeys, PredictionKeys
from tfx_tpu_trainer.estimator.heads._metrics import Measure, Pick
from tfx_tpu_trainer.estimator.heads._single_head import SingleHead

v1 = tf.compat.v1

_KEYS = (PredictionKeys.LOGITS, PredictionKeys.PROBABILITIES, PredictionKeys.CLASSES)

# Measures of a class: key by id, key by name, kind.
_OF_CLASS = (
    (MetricKeys.PROBABILITY_MEAN_AT_CLASS, MetricKeys.PROBABILITY_MEAN_AT_NAME, "mean"),
    (MetricKeys.AUC_AT_CLASS, MetricKeys.AUC_AT_NAME, "auc"),
    (MetricKeys.AUC_PR_AT_CLASS, MetricKeys.AUC_PR_AT_NAME, "auc_pr"),
)


class MultiLabelHead(SingleHead):
    """Sigmoid cross entropy, averaged over the classes; mirrors `tf.estimator.MultiLabelHead`.

    Takes logits [D0, ... DN, n_classes], and weights [D0, ... DN, 1] or [D0, ... DN]. Labels are
    zeros and ones of the shape of the logits, or a SparseTensor of [D0, ... DN, any] with the ids
    of each row's classes or, with a vocabulary, their strings.

    Examples:
        >>> from tfx_tpu_trainer.estimator import MultiLabelHead
        >>> import tensorflow as tf
        >>> head = MultiLabelHead(n_classes=3)
        >>> logits = tf.constant([[0.0, 2.0, -2.0]])
        >>> print(head.predictions(logits)["probabilities"].numpy().round(2))
        [[0.5  0.88 0.12]]
        >>> print(head.loss(tf.constant([[1, 1, 0]]), logits).numpy().round(3))
        0.316
    """

    def __init__(
        self,
        n_classes: int,
        weight_column: Any = None,
        thresholds: Iterable[float] | None = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = _losses.SUM_OVER_BATCH_SIZE,
        loss_fn: Callable[..., Any] | None = None,
        classes_for_class_based_metrics: Iterable[int | str] | None = None,
        name: str | None = None,
    ) -> None:
        """Checks the arguments.

        Args:
            n_classes: Number of classes, at least 2.
            weight_column: Name of the feature that holds the rows' weights, or a
                `tf.feature_column.numeric_column`. Defaults to `None`.
            thresholds: Probabilities in (0, 1) at which accuracy, precision and recall are
                measured. Defaults to `None`.
            label_vocabulary: The labels' strings, in the order of their ids. Defaults to `None`.
            loss_reduction: `"sum_over_batch_size"` or `"sum"`. Defaults to the former.
            loss_fn: Takes `labels` (zeros and ones) and `logits`, and `features` and
                `loss_reduction` if it names them; returns the rows' losses, [D0, ... DN, 1].
                Defaults to `None`.
            classes_for_class_based_metrics: Ids, or strings of the vocabulary, of the classes that
                also have their own metrics. Defaults to `None`.
            name: Suffix of the names of metrics and summaries. Defaults to `None`.

        Raises:
            ValueError: If an argument is invalid.
            TypeError: If `weight_column` is neither a name nor a numeric column.
        """
        super().__init__(
            weight_column=weight_column, loss_reduction=loss_reduction, loss_fn=loss_fn, name=name
        )
        self._n_classes = _classes.check_n_classes(
            n_classes,
            least=2,
            message=(
                "n_classes must be > 1 for multi-label classification. Given: "
                f"{n_classes}. For one class, use BinaryClassHead."
            ),
        )
        self._thresholds = _classes.check_thresholds(thresholds)
        self._label_vocabulary = self._check_vocabulary(label_vocabulary)
        measured = as_items(
            "classes_for_class_based_metrics", classes_for_class_based_metrics, "[0, 2]"
        )
        self._measured_classes = self._class_ids_of(measured)

    @property
    def logits_dimension(self) -> int:
        """The number of classes."""
        return self._n_classes

    def predictions(self, logits: Any, keys: Sequence[str] | None = None) -> dict[str, tf.Tensor]:
        """Returns logits, the probability of each class, and the classes; see `Head.predictions`."""
        keys = _classes.check_keys(keys, _KEYS)
        logits = _losses.check_logits(logits, self.logits_dimension)
        with v1.name_scope(None, "predictions"):
            makers = {
                PredictionKeys.LOGITS: lambda: logits,
                PredictionKeys.PROBABILITIES: lambda: tf.sigmoid(logits, name="probabilities"),
                PredictionKeys.CLASSES: lambda: _classes.all_classes(
                    logits, self._n_classes, self._label_vocabulary
                ),
            }
            return {key: makers[key]() for key in _KEYS if key in keys}

    def _check_vocabulary(self, vocabulary: Any) -> tuple[str, ...] | None:
        if isinstance(vocabulary, (list, tuple)) and len(vocabulary) != self._n_classes:
            raise ValueError(
                f"Length of label_vocabulary must be n_classes ({self._n_classes}). "
                f"Given: {len(vocabulary)}, {vocabulary!r}."
            )
        if vocabulary is not None and not isinstance(vocabulary, (list, tuple)):
            raise ValueError(
                f"label_vocabulary must be a list or tuple. Given type: {type(vocabulary)}."
            )
        return _classes.check_vocabulary(vocabulary)

    def _class_ids_of(self, named: Sequence[Any]) -> tuple[int, ...]:
        if not any(isinstance(name, str) for name in named):
            for class_id in named:
                if not 0 <= class_id < self._n_classes:
                    raise ValueError(
                        "All classes_for_class_based_metrics must be in range "
                        f"[0, {self._n_classes - 1}]. Given: {class_id}."
                    )
            return tuple(named)
        if self._label_vocabulary is None:
            raise ValueError(
                "label_vocabulary must be provided when classes_for_class_based_metrics are "
                f"strings. Given: {list(named)}."
            )
        unknown = [name for name in named if name not in self._label_vocabulary]
        if unknown:
            raise ValueError(
                f"{unknown[0]!r} is not in list: classes_for_class_based_metrics {unknown} are not "
                f"in label_vocabulary {list(self._label_vocabulary)}."
            )
        return tuple(self._label_vocabulary.index(name) for name in named)

    def _processed_labels(self, logits: tf.Tensor, given: Any) -> tf.Tensor:
        indicators = _classes.indicators(given, self._n_classes, self._label_vocabulary)
        return _losses.dense_labels(indicators, logits, self._n_classes)

    def _own_losses(self, logits: tf.Tensor, processed: tf.Tensor) -> tf.Tensor:
        of_classes = tf.nn.sigmoid_cross_entropy_with_logits(
            labels=tf.cast(processed, logits.dtype), logits=logits
        )
        return tf.reduce_mean(of_classes, axis=-1, keepdims=True)

    def _predictions_to_measure(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        return self.predictions(logits, [PredictionKeys.PROBABILITIES])

    def _measures(self) -> tuple[Measure, ...]:
        return (
            Measure(key=MetricKeys.LOSS_MEAN, kind="mean", values=lambda seen: seen.losses),
            Measure(key=MetricKeys.AUC, kind="auc", values=_probabilities),
            Measure(key=MetricKeys.AUC_PR, kind="auc_pr", values=_probabilities),
            *(
                Measure(key=key % threshold, kind=kind, values=_probabilities, threshold=threshold)
                for threshold in self._thresholds
                for key, kind in AT_THRESHOLD
            ),
            *(
                Measure(
                    key=self._key_of_class(by_id, by_name, class_id),
                    kind=kind,
                    values=_column(_probabilities, class_id),
                    labels=_column(lambda seen: seen.labels, class_id),
                )
                for class_id in self._measured_classes
                for by_id, by_name, kind in _OF_CLASS
            ),
        )

    def _key_of_class(self, by_id: str, by_name: str, class_id: int) -> str:
        if self._label_vocabulary is None:
            return by_id % class_id
        return by_name % self._label_vocabulary[class_id]

    def _export_outputs(
        self, predictions: dict[str, tf.Tensor], features: Any, logits: Any
    ) -> dict[str, ExportOutput]:
        return _classes.classification_outputs(predictions, self._n_classes, self._label_vocabulary)


def _probabilities(seen: Any) -> tf.Tensor:
    return seen.predictions[PredictionKeys.PROBABILITIES]


def _column(pick: Pick, class_id: int) -> Pick:
    # A slice instead of an index keeps the last axis, so that weights [rows, 1] fit.
    return lambda seen: pick(seen)[..., class_id : class_id + 1]
