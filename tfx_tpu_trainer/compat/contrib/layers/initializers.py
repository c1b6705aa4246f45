"""Initializers with contrib's arguments and defaults."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1
_MODES = ("FAN_IN", "FAN_OUT", "FAN_AVG")


def xavier_initializer(
    uniform: bool = True, seed: int | None = None, dtype: Any = tf.float32
) -> Any:
    """Makes an initializer that keeps the scale of gradients about the same in all layers.

    Args:
        uniform: Whether to draw from a uniform distribution; else from a normal one. Defaults to
            `True`.
        seed: Makes the numbers reproducible. Defaults to `None`.
        dtype: The values' type. Defaults to float32.

    Returns:
        The initializer.
    """
    return variance_scaling_initializer(
        factor=1.0, mode="FAN_AVG", uniform=uniform, seed=seed, dtype=dtype
    )


xavier_initializer_conv2d = xavier_initializer


def variance_scaling_initializer(
    factor: float = 2.0,
    mode: str = "FAN_IN",
    uniform: bool = False,
    seed: int | None = None,
    dtype: Any = tf.float32,
) -> Callable[..., tf.Tensor]:
    """Makes an initializer whose variance follows the number of inputs or outputs.

    The fan-in is the product of all sizes but the last, the fan-out that of all but the last but
    one. Behaves like `tf.contrib.layers.variance_scaling_initializer` in TensorFlow 1.15.

    Args:
        factor: The variance is `factor` / n. Defaults to 2.0.
        mode: The meaning of n: `"FAN_IN"`, `"FAN_OUT"` or `"FAN_AVG"`, their mean. Defaults to
            `"FAN_IN"`.
        uniform: Whether to draw from a uniform distribution; else from a truncated normal one.
            Defaults to `False`.
        seed: Makes the numbers reproducible. Defaults to `None`.
        dtype: The values' type, a float. Defaults to float32.

    Returns:
        The initializer.

    Raises:
        TypeError: If `dtype` is not a float, or `mode` is none of the three.
    """
    if not tf.as_dtype(dtype).is_floating:
        raise TypeError(f"An initializer of scaled variance makes floats; got dtype {dtype!r}.")
    if mode not in _MODES:
        raise TypeError(f"mode must be one of {', '.join(_MODES)}; got {mode!r}.")

    def initializer(shape: Any, dtype: Any = dtype, partition_info: Any = None) -> tf.Tensor:
        del partition_info
        sizes = list(shape)
        area = 1.0
        for size in sizes[:-2]:
            area *= float(size)
        fan_in = area * float(sizes[-2] if len(sizes) > 1 else sizes[-1]) if sizes else 1.0
        fan_out = area * float(sizes[-1]) if sizes else 1.0
        count = {"FAN_IN": fan_in, "FAN_OUT": fan_out, "FAN_AVG": (fan_in + fan_out) / 2.0}[mode]
        if uniform:
            limit = (3.0 * factor / count) ** 0.5
            return v1.random_uniform(shape, -limit, limit, dtype, seed=seed)
        # A normal distribution that is cut at two standard deviations has less variance.
        deviation = (1.3 * factor / count) ** 0.5
        return v1.truncated_normal(shape, 0.0, deviation, dtype, seed=seed)

    return initializer
