"""Checks logits, labels and weights of a loss, and reduces the rows' losses.

Known shapes are checked at once, others when the graph runs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf

from tfx_tpu_trainer.estimator._user_calls import argument_names, call_with, unexpected_arguments

v1 = tf.compat.v1

SUM: Final = "sum"
SUM_OVER_BATCH_SIZE: Final = "sum_over_batch_size"

_REDUCTIONS = ("auto", SUM, SUM_OVER_BATCH_SIZE)
_LOSS_FN_ARGUMENTS = ("labels", "logits", "features", "loss_reduction")


def check_reduction(reduction: Any, valid: Sequence[str] = _REDUCTIONS) -> str:
    """Checks a loss reduction and returns it."""
    if reduction not in valid:
        raise ValueError(
            f"Invalid loss_reduction: {reduction}. See `tf.losses.Reduction` for valid options: "
            f"{', '.join(map(repr, valid))}."
        )
    return reduction


def reduce_loss(losses: tf.Tensor, weights: tf.Tensor | None, reduction: str) -> tf.Tensor:
    """Sums weighted losses, or averages them over their number (not over the weights)."""
    # A loss_fn may return any numeric type; as in the original, it is reduced as float32.
    weighted = tf.cast(losses, tf.float32)
    if weights is not None:
        weighted *= weights
    total = tf.reduce_sum(weighted)
    if reduction != SUM:
        # Losses 2 and 4 with weights 1 and 0 are 2 / 2 = 1: a row of weight 0 counts. A V1 head with
        # SUM_BY_NONZERO_WEIGHTS divides by the number of nonzero weights: 2 / 1.
        total = tf.math.divide_no_nan(total, tf.cast(tf.size(weighted), tf.float32))
    return tf.cast(total, losses.dtype)


def check_loss_fn(loss_fn: Callable[..., Any] | None) -> None:
    """Checks the arguments of a loss function."""
    if loss_fn is None:
        return
    if not callable(loss_fn):
        raise TypeError(f"unsupported callable: loss_fn must be a function; got {loss_fn!r}.")
    names = argument_names(loss_fn)
    for required in ("labels", "logits"):
        if required not in names:
            raise ValueError(
                f"loss_fn must contain argument: {required}. Given arguments: {names} of {loss_fn!r}."
            )
    unexpected = unexpected_arguments(loss_fn, _LOSS_FN_ARGUMENTS)
    if unexpected:
        raise ValueError(
            f"loss_fn has unexpected args: {unexpected}. It may take {', '.join(_LOSS_FN_ARGUMENTS)}."
        )


def takes_features(loss_fn: Callable[..., Any] | None) -> bool:
    """Returns whether a loss function takes the features."""
    return loss_fn is not None and "features" in argument_names(loss_fn)


def call_loss_fn(
    loss_fn: Callable[..., Any],
    labels: tf.Tensor,
    logits: tf.Tensor,
    features: Mapping[str, Any] | None,
    *,
    dimension: int,
    reduction: str,
) -> tf.Tensor:
    """Calls a user's loss function and checks its result."""
    available = {
        "labels": labels,
        "logits": logits,
        "features": features,
        "loss_reduction": reduction,
    }
    with v1.name_scope(None, "call_loss_fn"):
        losses = tf.convert_to_tensor(call_with(loss_fn, available))
        return matching_logits(
            losses,
            logits,
            dimensions=(dimension,),
            message=f"loss_fn must return Tensor of shape [D0, D1, ... DN, {dimension}]. ",
            what="loss",
        )


def total_regularization(regularization_losses: Sequence[tf.Tensor] | None) -> tf.Tensor | None:
    """Sums regularization losses; `None` without any."""
    return tf.math.add_n(list(regularization_losses)) if regularization_losses else None


class WeightColumn:
    """The feature with the rows' weights, by a head's `weight_column`."""

    def __init__(self, column: Any) -> None:
        """Checks the column."""
        if isinstance(column, str):
            self._key, self._normalizer_fn = column, None
        elif hasattr(column, "key") and hasattr(column, "normalizer_fn"):
            self._key, self._normalizer_fn = column.key, column.normalizer_fn
        else:
            raise TypeError(
                "Weight column must be either a string or NumericColumn. Given type: "
                f"{type(column)}, {column!r}."
            )

    @property
    def key(self) -> str:
        """Name of the feature."""
        return self._key

    def read(
        self, features: Mapping[str, Any] | None, logits: tf.Tensor, *, per_logit: bool
    ) -> tf.Tensor:
        """Returns the weights."""
        feature = self._feature(features)
        with v1.name_scope(None, "weights"):
            weights = tf.cast(feature, tf.float32)
            # A column adds an axis to single numbers.
            if weights.shape.rank == 1:
                weights = tf.expand_dims(weights, -1)
            given, weights = weights, with_last_axis(weights, logits)
            allowed: list[int | None] = [1]
            shape = "[D0, D1, ... DN] or [D0, D1, ... DN, 1]"
            if per_logit:
                allowed.append(logits.shape[-1])
                shape = (
                    "[D0, D1, ... DN], [D0, D1, ... DN, 1] or [D0, D1, ... DN, logits_dimension]"
                )
            return matching_logits(
                weights,
                logits,
                dimensions=allowed,
                message=f"weights shape must be {shape}, ",
                what="weights",
                hint=f"They are the feature {self.key!r}.",
                broadcast=True,
                given=given,
            )

    def _feature(self, features: Mapping[str, Any] | None) -> tf.Tensor:
        if not isinstance(features, Mapping) or self.key not in features:
            known = sorted(map(str, features)) if isinstance(features, Mapping) else features
            raise ValueError(
                f"Feature {self.key} is not in features dictionary: it is the head's "
                f"weight_column, but the features are {known}."
            )
        feature = features[self.key]
        if isinstance(feature, (tf.SparseTensor, v1.SparseTensorValue)):
            raise ValueError(
                "The corresponding Tensor of numerical column must be a Tensor. SparseTensor is "
                f"not supported. key: {self.key}. The weights must be dense: convert them in "
                f"input_fn with tf.sparse.to_dense. Given: {feature}."
            )
        feature = tf.convert_to_tensor(feature)
        no_rows = (
            f"Feature (key: {self.key}) cannot have rank 0. Given: {feature}. Give each row its "
            "weight."
        )
        if feature.shape.rank is None:
            feature = required(feature, tf.rank(feature) > 0, no_rows, {})
        elif feature.shape.rank == 0:
            raise ValueError(no_rows)
        if self._normalizer_fn is not None:
            feature = self._normalizer_fn(feature)
        if not (feature.dtype.is_floating or feature.dtype.is_integer or feature.dtype.is_bool):
            raise ValueError(
                f"Weight column should be castable to float. Given dtype: {feature.dtype} of "
                f"the feature {self.key!r}."
            )
        return feature


# How many of a tensor's values an error in a session shows.
_SHOWN = 10


def required(
    tensor: tf.Tensor,
    condition: tf.Tensor,
    message: str,
    shown: Mapping[str, Any],
    error: Callable[[str], Exception] = ValueError,
) -> tf.Tensor:
    """Returns a tensor that requires a condition."""
    if tf.executing_eagerly():
        if not condition:
            values = ", ".join(f"{name}: {value.numpy()}" for name, value in shown.items())
            raise error(f"{message} {values}")
        return tensor
    data = [message, *(part for name, value in shown.items() for part in (f"{name}: ", value))]
    check = tf.debugging.Assert(condition, data, summarize=_SHOWN)
    with tf.control_dependencies([check]):
        return tf.identity(tensor)


# All checks below work in the same way: a wrong static shape fails here, while the graph is made and the user's
# line is on the stack; an unknown one becomes an assertion that the session runs before the tensor's
# first use. Eagerly, shapes are always known.
def check_logits(logits: Any, dimension: int) -> tf.Tensor:
    """Checks the shape of logits and returns them as float32."""
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
                "in head.logits_dimension."
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
    """Returns dense labels of the shape that the logits require."""
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
    """Checks that the shape of labels matches the logits and returns them."""
    message = (
        f"labels shape must be [D0, D1, ... DN, {dimension}]. Suggested Fix: check your n_classes "
        "argument to the head and/or the shape of your label."
    )
    rank = labels.shape.rank
    if rank is not None and rank < 2:
        short = f"labels must have rank at least 2.  Received rank {rank}, shape {labels.shape}."
        # The original's messages differ between eager execution and graphs.
        words = (short, message) if tf.executing_eagerly() else (message, short)
        raise ValueError(" ".join(words))
    if rank is not None and labels.shape[-1] not in (None, dimension):
        raise ValueError(
            f"Mismatched label shape. Expected labels dimension={dimension}.  Received "
            f"{labels.shape[-1]}, of labels of shape {labels.shape}. Suggested Fix: If your "
            "classifier expects one-hot encoding label, check your n_classes argument to the "
            "estimator and/or the shape of your label. Otherwise, check the shape of your label: "
            "class ids have one column, for any number of classes."
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
    """Checks that a shape is that of the logits, except for the last axis, and returns the tensor."""
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
    # An assertion prints each part in its own brackets.
    shown = [message.removesuffix(", "), "logits_shape: ", logits_shape]
    shown += [f"{what}_shape: ", tf.shape(given), hint]
    return _checked_when_run(tensor, tf.reduce_any(fits), shown)


def _axis(dimension: int | None, logits_shape: tf.Tensor) -> Any:
    """Returns a dimension as a shape of one axis; `None` is the last axis of the logits."""
    return logits_shape[-1:] if dimension is None else [dimension]


def with_last_axis(tensor: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Appends an axis of 1 to a tensor with one axis less than the logits."""
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
