"""Shapes of logits, labels, weights and losses: checked when they are known, else when they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1

# How many values of a tensor an error in a session shows.
_SHOWN = 10


def required(
    tensor: tf.Tensor,
    condition: tf.Tensor,
    message: str,
    shown: Mapping[str, Any],
    error: Callable[[str], Exception] = ValueError,
) -> tf.Tensor:
    """Returns a tensor back, once a condition is seen to hold."""
    if tf.executing_eagerly():
        if not condition:
            values = ", ".join(f"{name}: {value.numpy()}" for name, value in shown.items())
            raise error(f"{message} {values}")
        return tensor
    data = [message, *(part for name, value in shown.items() for part in (f"{name}: ", value))]
    check = tf.debugging.Assert(condition, data, summarize=_SHOWN)
    with tf.control_dependencies([check]):
        return tf.identity(tensor)


# All checks below go the same way: what the static shapes tell fails here, while the graph is made
# and the user's line is on the stack; what they leave open becomes an assertion that the session
# runs before the tensor's first use. Eagerly, shapes are always known.
def check_logits(logits: Any, dimension: int) -> tf.Tensor:
    """Returns logits as float32, of a shape that fits a head."""
    with v1.name_scope(None, "logits"):
        logits = tf.cast(logits, tf.float32)
        message = "logits shape must be [D0, D1, ... DN, logits_dimension]"
        rank = logits.shape.rank
        if rank is None:
            shape = tf.shape(logits)
            fits = tf.logical_and(tf.rank(logits) >= 2, tf.equal(shape[-1], dimension))
            return _checked_when_run(logits, fits, [message, shape])
        if rank < 2:
            raise ValueError(
                f"logits must have rank at least 2.  Received rank {rank}, shape {logits.shape}. "
                f"{message}."
            )
        last = logits.shape[-1]
        if last is None:
            shape = tf.shape(logits)
            return _checked_when_run(logits, tf.equal(shape[-1], dimension), [message, shape])
        if last != dimension:
            raise ValueError(
                f"{message}, got {logits.shape}. Give the last layer {dimension} units, as "
                "head.logits_dimension says."
            )
        return logits


def check_labels_given(labels: Any) -> None:
    """Checks that there are labels."""
    if labels is None:
        raise ValueError(
            "You must provide a labels Tensor. Given: None. Suggested troubleshooting steps: Check "
            "that your data contains your label feature. Check that your input_fn properly parses "
            "and returns labels, as (features, labels)."
        )


def dense_labels(labels: Any, logits: tf.Tensor, dimension: int) -> tf.Tensor:
    """Returns labels of the shape that goes with the logits."""
    check_labels_given(labels)
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
        labels = with_last_axis(tf.convert_to_tensor(labels), logits)
        return matching_labels(labels, logits, dimension)


def matching_labels(labels: tf.Tensor, logits: tf.Tensor, dimension: int) -> tf.Tensor:
    """Returns labels back, once their shape is seen to go with the logits."""
    message = (
        f"labels shape must be [D0, D1, ... DN, {dimension}]. Suggested Fix: check your n_classes "
        "argument to the head and/or the shape of your label."
    )
    rank = labels.shape.rank
    if rank is not None and rank < 2:
        short = f"labels must have rank at least 2.  Received rank {rank}, shape {labels.shape}."
        # The original's words differ between the two.
        told = (short, message) if tf.executing_eagerly() else (message, short)
        raise ValueError(" ".join(told))
    if rank is not None and labels.shape[-1] not in (None, dimension):
        raise ValueError(
            f"Mismatched label shape. Expected labels dimension={dimension}.  Received "
            f"{labels.shape[-1]}, of labels of shape {labels.shape}. Suggested Fix: If your "
            "classifier expects one-hot encoding label, check your n_classes argument to the "
            "estimator and/or the shape of your label. Otherwise, check the shape of your label: "
            "class ids have one column, however many classes there are."
        )
    expected = logits.shape[:-1].concatenate(dimension)
    if not labels.shape.is_compatible_with(expected):
        raise ValueError(
            f"{message}, expected_labels_shape: {expected}. labels_shape: {labels.shape}."
        )
    if _known_equal(labels.shape, expected):
        return labels
    if rank is None:
        with tf.control_dependencies(
            [v1.debugging.assert_rank_at_least(labels, 2, message=message)]
        ):
            labels = tf.identity(labels)
    wanted = tf.concat([tf.shape(logits)[:-1], [dimension]], axis=0)
    shape = tf.shape(labels)
    shown = [message, "expected_labels_shape: ", wanted, "labels_shape: ", shape]
    return _checked_when_run(labels, _equal_shapes(shape, wanted), shown)


def matching_logits(
    tensor: tf.Tensor,
    logits: tf.Tensor,
    *,
    dimensions: Sequence[int | None],
    message: str,
    what: str,
    hint: str = "",
    broadcast: bool = False,
    given: tf.Tensor | None = None,
) -> tf.Tensor:
    """Returns a tensor back whose shape is that of the logits, except for the last axis."""
    given = tensor if given is None else given
    expected = [logits.shape[:-1].concatenate(dimension) for dimension in dimensions]
    if any(_known_equal(tensor.shape, shape) for shape in expected):
        return tensor
    if tf.executing_eagerly() or (broadcast and not _can_broadcast(tensor.shape, expected[-1])):
        seen = f"logits_shape: {logits.shape}. {what}_shape: {given.shape}."
        raise ValueError(f"{message}{seen} {hint}".rstrip())
    shape, logits_shape = tf.shape(tensor), tf.shape(logits)
    fits = [
        _equal_shapes(shape, tf.concat([logits_shape[:-1], _axis(dimension, logits_shape)], axis=0))
        for dimension in dimensions
    ]
    # Each part of an assertion's text stands in brackets of its own.
    shown = [message.removesuffix(", "), "logits_shape: ", logits_shape]
    shown += [f"{what}_shape: ", tf.shape(given), hint]
    return _checked_when_run(tensor, tf.reduce_any(fits), shown)


def _axis(dimension: int | None, logits_shape: tf.Tensor) -> Any:
    """Returns a dimension as a shape of one axis: that of the logits where it is not known."""
    return logits_shape[-1:] if dimension is None else [dimension]


def with_last_axis(tensor: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Adds an axis of one at the end where a tensor has one axis less than the logits."""
    rank, logits_rank = tensor.shape.rank, logits.shape.rank
    if rank is not None and logits_rank is not None and rank == logits_rank - 1:
        return tf.expand_dims(tensor, -1)
    return tensor


def _checked_when_run(tensor: tf.Tensor, condition: tf.Tensor, shown: list[Any]) -> tf.Tensor:
    with tf.control_dependencies([tf.debugging.Assert(condition, shown, summarize=_SHOWN)]):
        return tf.identity(tensor)


def _known_equal(shape: tf.TensorShape, expected: tf.TensorShape) -> bool:
    return shape.is_fully_defined() and expected.is_fully_defined() and shape == expected


def _can_broadcast(shape: tf.TensorShape, expected: tf.TensorShape) -> bool:
    try:
        tf.broadcast_static_shape(shape, expected)
    except ValueError:
        return False
    return True


def _equal_shapes(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    if a.shape.is_fully_defined() and a.shape == b.shape:
        return tf.reduce_all(tf.equal(a, b))
    # Shapes of unequal ranks do not compare element by element.
    return tf.cond(
        tf.equal(tf.size(a), tf.size(b)),
        lambda: tf.reduce_all(tf.equal(a, b)),
        lambda: tf.constant(False),
    )
