"""Makes regularizers: functions from weights to a loss, or `None` if there is none."""

import numbers
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1
Regularizer = Callable[[Any], tf.Tensor | None]


def _nothing(weights: Any) -> None:
    del weights


def _scaled(
    scale: Any, scope: str | None, name: str, loss_of: Callable[[Any], tf.Tensor]
) -> Regularizer:
    if isinstance(scale, numbers.Integral):
        raise ValueError(f"scale cannot be an integer: {scale}; write it as a float.")
    if isinstance(scale, numbers.Real) and scale < 0.0:
        raise ValueError(f"A regularizer's scale must be 0 or more; got {scale}.")
    if scale == 0.0:
        return _nothing

    def regularizer(weights: Any) -> tf.Tensor:
        with v1.name_scope(scope, name, [weights]) as name_scope:
            factor = tf.convert_to_tensor(scale, weights.dtype.base_dtype, name="scale")
            return tf.multiply(factor, loss_of(weights), name=name_scope)

    return regularizer


def l1_regularizer(scale: float, scope: str | None = None) -> Regularizer:
    """Makes a regularizer of absolute values: `scale * sum(|w|)`.

    Args:
        scale: A float of 0 or more; 0.0 for no loss.
        scope: The ops' name scope. Defaults to `None`, `l1_regularizer`.

    Returns:
        The regularizer.

    Raises:
        ValueError: If `scale` is an integer or negative.
    """
    return _scaled(scale, scope, "l1_regularizer", lambda weights: tf.reduce_sum(tf.abs(weights)))


def l2_regularizer(scale: float, scope: str | None = None) -> Regularizer:
    """Makes a regularizer of squares: `scale * sum(w ** 2) / 2`.

    Args:
        scale: As for `l1_regularizer`.
        scope: The ops' name scope. Defaults to `None`, `l2_regularizer`.

    Returns:
        The regularizer.

    Raises:
        ValueError: If `scale` is an integer or negative.
    """
    return _scaled(scale, scope, "l2_regularizer", tf.nn.l2_loss)


def sum_regularizer(
    regularizer_list: Sequence[Regularizer | None], scope: str | None = None
) -> Regularizer:
    """Makes a regularizer that is the sum of others.

    Args:
        regularizer_list: The others; a `None` is left out.
        scope: The ops' name scope. Defaults to `None`, `sum_regularizer`.

    Returns:
        The regularizer; `None` if there is none to add.
    """
    parts = [each for each in regularizer_list if each is not None]
    if not parts:
        return None  # type: ignore[return-value]

    def total(weights: Any) -> tf.Tensor | None:
        with v1.name_scope(scope, "sum_regularizer", [weights]) as name:
            losses = [loss for loss in (each(weights) for each in parts) if loss is not None]
            return tf.add_n(losses, name=name) if losses else None

    return total


def apply_regularization(
    regularizer: Regularizer, weights_list: Sequence[Any] | None = None
) -> tf.Tensor:
    """Adds up a regularizer's losses of several weights, and collects them.

    The sum goes into `GraphKeys.REGULARIZATION_LOSSES`.

    Args:
        regularizer: The regularizer.
        weights_list: The weights. Defaults to `None`, those in `GraphKeys.WEIGHTS`.

    Returns:
        The sum, a scalar.

    Raises:
        ValueError: If there are no weights, or a loss is not a scalar.
    """
    weights = weights_list or v1.get_collection(v1.GraphKeys.WEIGHTS)
    if not weights:
        raise ValueError("No weights to regularize: give a weights_list.")
    with v1.name_scope("get_regularization_penalty", values=weights) as scope:
        made = [regularizer(each) for each in weights]
        losses = [tf.constant(0.0) if each is None else each for each in made]
        for loss, each in zip(losses, weights):
            if loss.shape.rank != 0:
                raise ValueError(
                    f"The regularizer made a tensor of shape {loss.shape} of {each.name}, not a scalar."
                )
        total = tf.add_n(losses, name=scope)
        v1.add_to_collection(v1.GraphKeys.REGULARIZATION_LOSSES, total)
        return total
