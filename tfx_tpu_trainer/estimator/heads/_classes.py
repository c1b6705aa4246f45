"""Classes of heads: vocabularies, ids in labels, and predictions."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import tensorflow as tf

from tfx_tpu_trainer.estimator._argument_checks import as_items, holds
from tfx_tpu_trainer.estimator._engine.tf_private import kept_outside
from tfx_tpu_trainer.estimator.export._outputs import (
    ClassificationOutput,
    ExportOutput,
    PredictOutput,
)
from tfx_tpu_trainer.estimator.heads import _losses
from tfx_tpu_trainer.estimator.heads._head import PredictionKeys, SignatureKeys

v1 = tf.compat.v1


def check_keys(keys: Iterable[str] | None, valid: Sequence[str]) -> tuple[str, ...]:
    """Returns the keys of the predictions to make."""
    keys = tuple(keys or ())
    for key in keys:
        if key not in valid:
            raise ValueError(
                f"Prediction key must be in PredictionKeys, given: {key!r}. Valid prediction keys "
                f"include {list(valid)}."
            )
    return keys or tuple(valid)


def best_class_ids(logits: tf.Tensor) -> tf.Tensor:
    """Returns the class with the greatest logit, int64 [D0, ... DN, 1]."""
    return tf.expand_dims(tf.argmax(logits, axis=-1, name="class_ids"), axis=-1)


def class_names(
    class_ids: tf.Tensor, n_classes: int, vocabulary: Sequence[str] | None
) -> tf.Tensor:
    """Returns the names of classes; without a vocabulary, their ids as strings.

    Classes that the vocabulary lacks are named "UNK". TPUs hold no strings, so the host makes them.
    """
    if vocabulary:
        names = [*vocabulary, *["UNK"] * (n_classes - len(vocabulary))]
        return kept_outside(lambda ids: tf.gather(tf.constant(names), ids), class_ids)
    return kept_outside(lambda ids: tf.strings.as_string(ids, name="str_classes"), class_ids)


def all_class_ids(logits: tf.Tensor, n_classes: int) -> tf.Tensor:
    """Returns the ids of all classes for every row, int32 [batch, n_classes]."""
    return tf.tile(tf.expand_dims(tf.range(n_classes), 0), [tf.shape(logits)[0], 1])


def all_classes(logits: tf.Tensor, n_classes: int, vocabulary: Sequence[str] | None) -> tf.Tensor:
    """Returns the names of all classes for every row, string [batch, n_classes]."""
    names = vocabulary or [str(class_id) for class_id in range(n_classes)]
    return kept_outside(
        lambda rows: tf.tile(tf.constant([list(names)]), [rows, 1]), tf.shape(logits)[0]
    )


CLASS_KEYS: Final = (
    PredictionKeys.CLASS_IDS,
    PredictionKeys.CLASSES,
    PredictionKeys.ALL_CLASS_IDS,
    PredictionKeys.ALL_CLASSES,
)


def class_makers(
    logits: tf.Tensor, n_classes: int, vocabulary: Sequence[str] | None
) -> dict[str, Callable[[], tf.Tensor]]:
    """Returns the functions that make each prediction of classes."""
    return {
        PredictionKeys.CLASS_IDS: lambda: best_class_ids(logits),
        PredictionKeys.CLASSES: lambda: class_names(best_class_ids(logits), n_classes, vocabulary),
        PredictionKeys.ALL_CLASS_IDS: lambda: all_class_ids(logits, n_classes),
        PredictionKeys.ALL_CLASSES: lambda: all_classes(logits, n_classes, vocabulary),
    }


def classification_outputs(
    predictions: dict[str, tf.Tensor], n_classes: int, vocabulary: Sequence[str] | None
) -> dict[str, ExportOutput]:
    """Returns a classifier's signatures: a score for each class, and the predictions."""
    scores = predictions[PredictionKeys.PROBABILITIES]
    classes = all_classes(scores, n_classes, vocabulary)
    classifier = ClassificationOutput(scores=scores, classes=classes)
    return {
        SignatureKeys.DEFAULT: classifier,
        SignatureKeys.CLASSIFY: classifier,
        SignatureKeys.PREDICT: PredictOutput(predictions),
    }


def check_thresholds(
    thresholds: Iterable[float] | None, message: str = "thresholds must be in (0, 1) range."
) -> tuple[float, ...]:
    """Returns thresholds as a tuple."""
    checked = as_items("thresholds", thresholds, "[0.3, 0.7]")
    for threshold in checked:
        if not holds("thresholds", threshold, lambda number: 0.0 < number < 1.0):
            raise ValueError(f"{message} Given: {threshold} of {checked}.")
    return checked


def check_n_classes(n_classes: Any, *, least: int, message: str) -> int:
    """Checks a number of classes and returns it."""
    if isinstance(n_classes, (str, bytes)):
        raise TypeError(
            f"'<' not supported between instances of {type(n_classes).__name__!r} and 'int': "
            f"n_classes is a number. Given: {n_classes!r}."
        )
    if n_classes is None or n_classes < least:
        raise ValueError(message)
    if int(n_classes) != n_classes:
        raise TypeError(f"n_classes must be a whole number. Given: {n_classes!r}.")
    return int(n_classes)


def check_vocabulary(vocabulary: Any, n_classes: int | None = None) -> tuple[str, ...] | None:
    """Returns a label vocabulary as a tuple."""
    if vocabulary is None:
        return None
    if not isinstance(vocabulary, (list, tuple)):
        raise ValueError(
            f"label_vocabulary should be a list or a tuple. Given type: {type(vocabulary)}."
        )
    if n_classes is not None and len(vocabulary) != n_classes:
        raise ValueError(
            f'"label_vocabulary" does not have "n_classes" items. '
            f"len(label_vocabulary)={len(vocabulary)}, n_classes={n_classes}, "
            f"label_vocabulary={vocabulary!r}."
        )
    if not vocabulary or not all(isinstance(label, (str, bytes)) for label in vocabulary):
        raise ValueError(f"label_vocabulary should have strings. Given: {vocabulary!r}.")
    twice = sorted({label for label in vocabulary if vocabulary.count(label) > 1})
    if twice:
        raise ValueError(f"label_vocabulary has {twice} more than once: {vocabulary!r}.")
    return tuple(vocabulary)


def class_ids(
    labels: tf.Tensor,
    vocabulary: Sequence[str],
    *,
    message: str = "Labels must be >= 0; one that label_vocabulary lacks has the id -1.",
    error: Callable[[str], Exception] = ValueError,
) -> tf.Tensor:
    """Looks up the ids of labels."""
    if labels.dtype != tf.string:
        raise ValueError(
            "Labels dtype should be string if there is a vocabulary. Instead got "
            f"{labels.dtype}. Leave label_vocabulary out if labels are numbers."
        )
    ids = list(range(len(vocabulary)))
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(
            tf.constant(vocabulary), tf.constant(ids, dtype=tf.int64)
        ),
        default_value=-1,
        name="class_id_lookup",
    )
    found = table.lookup(labels)
    known = tf.greater_equal(found, 0)
    return _losses.required(
        found,
        tf.reduce_all(known),
        message,
        {
            "labels that it lacks": tf.boolean_mask(
                tf.reshape(labels, [-1]), tf.reshape(tf.logical_not(known), [-1])
            ),
            "label_vocabulary": tf.constant(vocabulary),
        },
        error,
    )


def in_range(labels: tf.Tensor, n_classes: int, message: str | None = None) -> tf.Tensor:
    """Checks that labels are from 0 to `n_classes - 1` and returns them."""
    with v1.name_scope(None, "check_label_range"):
        greatest = n_classes - 1
        if tf.executing_eagerly():
            least, most = tf.reduce_min(labels), tf.reduce_max(labels)
            if not most <= tf.cast(greatest, labels.dtype):
                raise ValueError(
                    f"{message or f'Labels must be <= {n_classes} - 1'}. The greatest label is "
                    f"{most.numpy()}."
                )
            if not least >= tf.cast(0, labels.dtype):
                raise ValueError(
                    f"{message or 'Labels must be >= 0'}. The least label is {least.numpy()}."
                )
            return labels
        checks = [
            v1.debugging.assert_less_equal(
                labels,
                tf.cast(greatest, labels.dtype),
                message=message or f"Labels must be <= n_classes - 1, {greatest}",
            ),
            v1.debugging.assert_non_negative(labels, message=message or "Labels must be >= 0"),
        ]
        with tf.control_dependencies(checks):
            return tf.identity(labels)


def indicators(labels: Any, n_classes: int, vocabulary: Sequence[str] | None) -> tf.Tensor:
    """Returns multi-label rows as indicators, one column for each class."""
    _losses.check_labels_given(labels)
    if not isinstance(labels, tf.SparseTensor):
        labels = tf.convert_to_tensor(labels)
        if labels.dtype in (tf.bool, tf.string):
            given = labels.dtype.name
            words = (
                f"Cannot convert 1 to EagerTensor of dtype {given}"
                if tf.executing_eagerly()
                else f"Expected {given}, but got 1 of type 'int'"
            )
            fix = (
                "Cast them to int64."
                if labels.dtype == tf.bool
                else "Give a SparseTensor of strings, and a label_vocabulary."
            )
            raise TypeError(
                f"{words}: labels must be an integer indicator Tensor with values in [0, 1]. {fix} "
                f"Given: {labels}."
            )
        return in_range(
            labels, 2, "labels must be an integer indicator Tensor with values in [0, 1]"
        )
    if labels.dtype == tf.string:
        if vocabulary is None:
            raise ValueError(
                f"Labels dtype should be integer. Instead got {labels.dtype}: give the head a "
                "label_vocabulary."
            )
        ids = class_ids(
            labels.values,
            vocabulary,
            message="Indices are not valid (out of bounds): one that label_vocabulary lacks is -1.",
            error=lambda message: tf.errors.InvalidArgumentError(None, None, message),
        )
    elif labels.dtype.is_integer:
        ids = in_range(
            labels.values,
            n_classes,
            f"labels must be an integer SparseTensor with values in [0, {n_classes})",
        )
    else:
        raise ValueError(f"Labels dtype should be integer. Instead got {labels.dtype}.")
    of_classes = tf.SparseTensor(labels.indices, ids, labels.dense_shape)
    return tf.cast(tf.sparse.to_indicator(of_classes, n_classes), tf.int64)
