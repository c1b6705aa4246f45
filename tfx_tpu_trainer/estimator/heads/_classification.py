"""Heads that predict classes: one of two, one of several, or any number for each row."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._argument_checks import as_items
from tfx_tpu_trainer.estimator.export._outputs import ExportOutput, RegressionOutput
from tfx_tpu_trainer.estimator.heads import _classes, _losses
from tfx_tpu_trainer.estimator.heads._head import MetricKeys, PredictionKeys, SignatureKeys
from tfx_tpu_trainer.estimator.heads._metrics import Measure, Pick
from tfx_tpu_trainer.estimator.heads._single_head import SingleHead

v1 = tf.compat.v1
_N_CLASSES = 2
_BINARY_KEYS = (
    PredictionKeys.LOGITS,
    PredictionKeys.LOGISTIC,
    PredictionKeys.PROBABILITIES,
    *_classes.CLASS_KEYS,
)
_MULTI_KEYS = (PredictionKeys.LOGITS, PredictionKeys.PROBABILITIES, *_classes.CLASS_KEYS)

# The key of each measure at a threshold, with a placeholder for the threshold, and its kind.
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
            thresholds: Further probabilities in (0, 1) at which accuracy, precision and recall are
                measured. Defaults to `None`.
            label_vocabulary: The two labels' strings, in the order of their ids. Defaults to
                `None`: labels are numbers.
            loss_reduction: `"sum_over_batch_size"` or `"sum"`. Defaults to the former.
            loss_fn: Takes `labels` and `logits`, and `features` and `loss_reduction` if it names
                them; returns the rows' losses, [D0, ... DN, 1]. Defaults to `None`.
            name: Suffix of the names of metrics and summaries. Defaults to `None`.

        Raises:
            ValueError: If an argument is invalid.
            TypeError: If `weight_column` is neither a name nor a numeric column.
        """
        super().__init__(
            weight_column=weight_column, loss_reduction=loss_reduction, loss_fn=loss_fn, name=name
        )
        self._label_vocabulary = _classes.check_vocabulary(label_vocabulary)
        thresholds = as_items("thresholds", thresholds, "[0.3, 0.7]")
        self._thresholds = _classes.check_thresholds(
            thresholds, f"thresholds not in (0, 1): {(thresholds,)}."
        )

    @property
    def logits_dimension(self) -> int:
        """Always 1."""
        return 1

    def predictions(self, logits: Any, keys: Sequence[str] | None = None) -> dict[str, tf.Tensor]:
        """Returns logits, probabilities and classes; see `Head.predictions`."""
        keys = _classes.check_keys(keys, _BINARY_KEYS)
        logits = _losses.check_logits(logits, self.logits_dimension)
        with v1.name_scope(None, "predictions"):
            # A softmax over [0, x] is [1 - sigmoid(x), sigmoid(x)], so one logit gives the probabilities of two
            # classes, and the argmax is their class.
            two_logits = tf.concat((tf.zeros_like(logits), logits), -1, name="two_class_logits")
            makers = {
                PredictionKeys.LOGITS: lambda: logits,
                PredictionKeys.LOGISTIC: lambda: tf.sigmoid(logits, name="logistic"),
                PredictionKeys.PROBABILITIES: lambda: tf.nn.softmax(
                    two_logits, name="probabilities"
                ),
                **_classes.class_makers(two_logits, _N_CLASSES, self._label_vocabulary),
            }
            return {key: makers[key]() for key in _BINARY_KEYS if key in keys}

    def _processed_labels(self, logits: tf.Tensor, given: Any) -> tf.Tensor:
        dense = _losses.dense_labels(given, logits, 1)
        if self._label_vocabulary is not None:
            dense = _classes.class_ids(dense, self._label_vocabulary)
        elif dense.dtype == tf.string:
            raise ValueError(
                f"Labels dtype should be a number without a vocabulary. Instead got {dense}: give "
                "the head a label_vocabulary."
            )
        return _classes.in_range(tf.cast(dense, tf.float32), _N_CLASSES)

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

    def _export_outputs(
        self, predictions: dict[str, tf.Tensor], features: Any, logits: Any
    ) -> dict[str, ExportOutput]:
        outputs = _classes.classification_outputs(predictions, _N_CLASSES, self._label_vocabulary)
        value = RegressionOutput(predictions[PredictionKeys.LOGISTIC])
        return {**outputs, SignatureKeys.REGRESS: value}


def _class_ids(seen: Any) -> tf.Tensor:
    return seen.predictions[PredictionKeys.CLASS_IDS]


def _logistic(seen: Any) -> tf.Tensor:
    return seen.predictions[PredictionKeys.LOGISTIC]


class MultiClassHead(SingleHead):
    """Softmax cross entropy for three classes or more; mirrors `tf.estimator.MultiClassHead`.

    Takes logits [D0, ... DN, n_classes], labels [D0, ... DN, 1] or [D0, ... DN], and weights of
    either shape. Labels are class ids, or strings of the vocabulary.

    Examples:
        Equal logits have a loss of log(3) = 1.099:

        >>> from tfx_tpu_trainer.estimator import MultiClassHead
        >>> import tensorflow as tf
        >>> head = MultiClassHead(n_classes=3)
        >>> logits = tf.constant([[0.0, 0.0, 0.0], [0.0, 5.0, 0.0]])
        >>> print(head.loss(tf.constant([[2], [1]]), logits).numpy().round(3))
        0.556
        >>> print(head.predictions(logits)["class_ids"].numpy().tolist())
        [[0], [1]]
    """

    def __init__(
        self,
        n_classes: int,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = _losses.SUM_OVER_BATCH_SIZE,
        loss_fn: Callable[..., Any] | None = None,
        name: str | None = None,
    ) -> None:
        """Checks the arguments.

        Args:
            n_classes: Number of classes, at least 3.
            weight_column: Name of the feature that holds the rows' weights, or a
                `tf.feature_column.numeric_column`. Defaults to `None`.
            label_vocabulary: The labels' strings, in the order of their ids. Defaults to `None`:
                labels are ids.
            loss_reduction: `"sum_over_batch_size"` or `"sum"`. Defaults to the former.
            loss_fn: Takes `labels` (ids) and `logits`, and `features` and `loss_reduction` if it
                names them; returns the rows' losses, [D0, ... DN, 1]. Defaults to `None`.
            name: Suffix of the names of metrics and summaries. Defaults to `None`.

        Raises:
            ValueError: If an argument is invalid.
            TypeError: If `weight_column` is neither a name nor a numeric column.
        """
        super().__init__(
            weight_column=weight_column, loss_reduction=loss_reduction, loss_fn=loss_fn, name=name
        )
        if n_classes is None:
            raise ValueError("n_classes cannot be None: give the number of classes.")
        self._n_classes = _classes.check_n_classes(
            n_classes,
            least=3,
            message=f"n_classes must be > 2: {n_classes}. For two classes, use BinaryClassHead.",
        )
        self._label_vocabulary = _classes.check_vocabulary(label_vocabulary, self._n_classes)

    @property
    def logits_dimension(self) -> int:
        """The number of classes."""
        return self._n_classes

    def predictions(self, logits: Any, keys: Sequence[str] | None = None) -> dict[str, tf.Tensor]:
        """Returns logits, probabilities and classes; see `Head.predictions`."""
        keys = _classes.check_keys(keys, _MULTI_KEYS)
        logits = _losses.check_logits(logits, self.logits_dimension)
        with v1.name_scope(None, "predictions"):
            makers = {
                PredictionKeys.LOGITS: lambda: logits,
                PredictionKeys.PROBABILITIES: lambda: tf.nn.softmax(logits, name="probabilities"),
                **_classes.class_makers(logits, self._n_classes, self._label_vocabulary),
            }
            return {key: makers[key]() for key in _MULTI_KEYS if key in keys}

    def _processed_labels(self, logits: tf.Tensor, given: Any) -> tf.Tensor:
        dense = _losses.dense_labels(given, logits, 1)
        if self._label_vocabulary is not None:
            return _classes.class_ids(dense, self._label_vocabulary)
        if not dense.dtype.is_integer:
            raise ValueError(
                f"Labels dtype should be integer. Instead got {dense.dtype}. Cast class ids "
                "to int64, or give the head a label_vocabulary for strings."
            )
        return _classes.in_range(dense, self._n_classes)

    def _own_losses(self, logits: tf.Tensor, processed: tf.Tensor) -> tf.Tensor:
        rows = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=tf.squeeze(processed, axis=-1), logits=logits
        )
        return tf.expand_dims(rows, axis=-1)

    def _predictions_to_measure(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        return self.predictions(logits, [PredictionKeys.CLASS_IDS])

    def _measures(self) -> tuple[Measure, ...]:
        return (
            Measure(key=MetricKeys.LOSS_MEAN, kind="mean", values=lambda seen: seen.losses),
            Measure(
                key=MetricKeys.ACCURACY,
                kind="accuracy",
                values=lambda seen: seen.predictions[PredictionKeys.CLASS_IDS],
            ),
        )

    def _export_outputs(
        self, predictions: dict[str, tf.Tensor], features: Any, logits: Any
    ) -> dict[str, ExportOutput]:
        return _classes.classification_outputs(predictions, self._n_classes, self._label_vocabulary)


def classification_head(
    n_classes: int,
    weight_column: Any,
    label_vocabulary: Sequence[str] | None,
    loss_reduction: str,
    *,
    binary: Callable[..., SingleHead] = BinaryClassHead,
    multi: Callable[..., SingleHead] = MultiClassHead,
) -> SingleHead:
    """Returns the head of a classifier of two or more classes."""
    make = binary if n_classes == _N_CLASSES else functools.partial(multi, n_classes)
    return make(weight_column, label_vocabulary=label_vocabulary, loss_reduction=loss_reduction)


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
    # A slice instead of an index keeps the last axis, so weights [rows, 1] fit.
    return lambda seen: pick(seen)[..., class_id : class_id + 1]
