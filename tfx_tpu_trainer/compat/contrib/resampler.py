"""`tf.contrib.resampler`: the values of images between their pixels."""

from typing import Any

import tensorflow as tf

__all__ = ["resampler"]


def resampler(data: Any, warp: Any, name: str = "resampler") -> tf.Tensor:
    """Samples images at any coordinates, bilinearly.

    Args:
        data: `[batch, height, width, channels]`.
        warp: `[batch, ..., 2]`: x, counted in columns, and y, in rows.
        name: The op's name scope. Defaults to `"resampler"`.

    Returns:
        `[batch, ..., channels]`. Values outside of an image count as 0.
    """
    with tf.name_scope(name):
        images = tf.convert_to_tensor(data)
        points = tf.convert_to_tensor(warp, images.dtype)
        sizes = tf.shape(images)
        height, width = sizes[1], sizes[2]
        low = tf.floor(points)
        share = points - low
        corner = tf.cast(low, tf.int32)
        total = 0.0
        for right, down in ((0, 0), (1, 0), (0, 1), (1, 1)):
            x, y = corner[..., 0] + right, corner[..., 1] + down
            inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
            index = tf.stack(
                [tf.clip_by_value(y, 0, height - 1), tf.clip_by_value(x, 0, width - 1)], -1
            )
            pixels = tf.gather_nd(images, index, batch_dims=1)
            weight = share[..., 0] if right else 1 - share[..., 0]
            weight *= share[..., 1] if down else 1 - share[..., 1]
            total += pixels * tf.where(inside, weight, tf.zeros_like(weight))[..., tf.newaxis]
        return total
