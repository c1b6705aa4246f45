"""Turns raw digits into the model's features: pixels scaled to [0, 1]."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tensorflow_transform as tft

LABEL = "digit"
SIDE = 8


def preprocessing_fn(inputs: dict[str, Any]) -> dict[str, tf.Tensor]:
    """Scales the images by the darkest and lightest pixel of the data.

    Args:
        inputs: `pixels`, int64 [batch, 64], and `digit`, int64 [batch, 1].

    Returns:
        `pixels` as float32 [batch, 64] between 0 and 1, and the label unchanged.
    """
    return {
        "pixels": tft.scale_to_0_1(tf.cast(inputs["pixels"], tf.float32)),
        LABEL: tf.identity(inputs["digit"]),
    }
