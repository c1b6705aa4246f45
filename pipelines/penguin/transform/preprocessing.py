"""Turns measurements into the model's features: z-scores, and the species as a number."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tensorflow_transform as tft

MEASUREMENTS = ("bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g")
LABEL = "species"
SPECIES = 3


def preprocessing_fn(inputs: dict[str, Any]) -> dict[str, tf.Tensor]:
    """Scales the measurements, and numbers the species from the most to the least frequent one.

    Args:
        inputs: `MEASUREMENTS`, numbers of shape [batch, 1], and `species`, strings of shape [batch, 1].

    Returns:
        Features of the same names: float32 and, for the species, int64.
    """
    scaled = {
        name: tft.scale_to_z_score(tf.cast(inputs[name], tf.float32)) for name in MEASUREMENTS
    }
    return {**scaled, LABEL: tft.compute_and_apply_vocabulary(inputs[LABEL], vocab_filename=LABEL)}
