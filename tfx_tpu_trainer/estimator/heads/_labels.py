"""Labels as a head's loss wants them: class ids, 0 to 1, or one column for each class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator.heads import _shapes

v1 = tf.compat.v1


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


def check_given(labels: Any) -> None:
    """Checks that there are labels."""
    if labels is None:
        raise ValueError(
            "You must provide a labels Tensor. Given: None. Suggested troubleshooting steps: Check "
            "that your data contains your label feature. Check that your input_fn properly parses "
            "and returns labels, as (features, labels)."
        )


def dense_labels(labels: Any, logits: tf.Tensor, dimension: int) -> tf.Tensor:
    """Returns labels of the shape that goes with the logits."""
    check_given(labels)
    if isinstance(labels, (tf.SparseTensor, v1.SparseTensorValue)):
        raise ValueError(
            "SparseTensor labels are not supported. Labels must be a Tensor of shape "
            f"[D0, D1, ..., DN, {dimension}], e.g. [batch_size, {dimension}]. Suggested Fix (1): "
            f"Check the label feature in your data. Each example must contain {dimension} "
            "value(s). If not, your choice of label was probably incorrect. Suggested Fix (2): In "
            "your input_fn, use tf.sparse.to_dense() to turn labels into a Tensor. Given: "
            f"{labels}."
        )
    with v1.name_scope(None, "labels"):
        labels = _shapes.with_last_axis(tf.convert_to_tensor(labels), logits)
        return _shapes.matching_labels(labels, logits, dimension)


def class_ids(
    labels: tf.Tensor,
    vocabulary: Sequence[str],
    *,
    message: str = "Labels must be >= 0; one that label_vocabulary lacks has the id -1.",
    error: Callable[[str], Exception] = ValueError,
) -> tf.Tensor:
    """Looks labels up."""
    if labels.dtype != tf.string:
        raise ValueError(
            "Labels dtype should be string if there is a vocabulary. Instead got "
            f"{labels.dtype}. Leave label_vocabulary out where labels are numbers."
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
    return _shapes.required(
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
    """Returns labels back, once they are seen to be from 0 to `n_classes - 1`."""
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
    """Returns the labels of rows that may have any number of them, one column for each class."""
    check_given(labels)
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
