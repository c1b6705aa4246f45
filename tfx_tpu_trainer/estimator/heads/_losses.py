"""From the loss of each row to one number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf

from tfx_tpu_trainer.estimator._callables import argument_names, call_with, unexpected_arguments
from tfx_tpu_trainer.estimator.heads import _shapes

v1 = tf.compat.v1

SUM: Final = "sum"
SUM_OVER_BATCH_SIZE: Final = "sum_over_batch_size"
AUTO: Final = "auto"

_REDUCTIONS = (AUTO, SUM, SUM_OVER_BATCH_SIZE)
_LOSS_FN_ARGUMENTS = ("labels", "logits", "features", "loss_reduction")


def check_reduction(reduction: Any, valid: Sequence[str] = _REDUCTIONS) -> str:
    """Returns a loss reduction back if it is one that a head can use."""
    if reduction not in valid:
        raise ValueError(
            f"Invalid loss_reduction: {reduction}. See `tf.losses.Reduction` for valid options: "
            f"{', '.join(map(repr, valid))}."
        )
    return reduction


def reduce_loss(losses: tf.Tensor, weights: tf.Tensor | None, reduction: str) -> tf.Tensor:
    """Sums weighted losses, or averages them over their number (not over the weights)."""
    # A loss_fn may give any number type; as in the original it is reduced as float32.
    weighted = tf.cast(losses, tf.float32)
    if weights is not None:
        weighted *= weights
    total = tf.reduce_sum(weighted)
    if reduction != SUM:
        total = tf.math.divide_no_nan(total, tf.cast(tf.size(weighted), tf.float32))
    return tf.cast(total, losses.dtype)


def check_loss_fn(loss_fn: Callable[..., Any] | None, *, reduction_allowed: bool = True) -> None:
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
    allowed = _LOSS_FN_ARGUMENTS if reduction_allowed else _LOSS_FN_ARGUMENTS[:-1]
    unexpected = unexpected_arguments(loss_fn, allowed)
    if unexpected:
        raise ValueError(
            f"loss_fn has unexpected args: {unexpected}. It may take {', '.join(allowed)}."
        )


def takes_features(loss_fn: Callable[..., Any] | None) -> bool:
    """Tells whether a loss function wants the features."""
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
    """Calls a user's loss function and checks what it returns."""
    available = {
        "labels": labels,
        "logits": logits,
        "features": features,
        "loss_reduction": reduction,
    }
    with v1.name_scope(None, "call_loss_fn"):
        losses = tf.convert_to_tensor(call_with(loss_fn, available))
        return _shapes.matching_logits(
            losses,
            logits,
            dimensions=(dimension,),
            message=f"loss_fn must return Tensor of shape [D0, D1, ... DN, {dimension}]. ",
            what="loss",
        )


def total_regularization(regularization_losses: Sequence[tf.Tensor] | None) -> tf.Tensor | None:
    """Adds up regularization losses; `None` where there are none."""
    return tf.math.add_n(list(regularization_losses)) if regularization_losses else None
