"""Turns raw taxi rides into the model's features: z-scores, buckets, vocabularies, and replacements of missing values.

`model.py` also builds its layers from the names and sizes here.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tensorflow_transform as tft

LABEL = "big_tip"

# Long-tailed numbers: a logarithm, then a z-score. A missing value becomes 0, the mean.
NUMBERS = ("fare", "trip_miles", "trip_seconds")

# Numbers whose rank matters more than their size: quantile buckets, and one more bucket for a missing value.
BUCKETS = 10
BUCKETED = ("pickup_latitude", "pickup_longitude", "dropoff_latitude", "dropoff_longitude")

# Strings: an id from a vocabulary; a missing string is a separate word, and an unknown one gets the last id.
VOCABULARIES = ("payment_type", "company")
VOCABULARY_TOP_K = 1000
OOV_BUCKETS = 1
MISSING_WORD = "missing"

# Small whole numbers with known ranges; 0 means a missing value, and a value out of range gets the last id.
IDS = {
    "trip_start_hour": 24,
    "trip_start_day": 8,
    "trip_start_month": 13,
    "pickup_community_area": 78,
    "dropoff_community_area": 78,
}


def preprocessing_fn(inputs: dict[str, Any]) -> dict[str, tf.Tensor]:
    """Turns a batch of raw rides into features of shape [batch] each.

    Args:
        inputs: Raw features by name, sparse or dense; `tips` may be absent from every row, as in serving.

    Returns:
        Transformed features by name: `<number>_scaled` (float32), `<name>_id` (int64) and the label
        (int64).

    Raises:
        ValueError: If a column is missing from the data.
    """
    missing = sorted({"tips", *NUMBERS, *BUCKETED, *VOCABULARIES, *IDS} - set(inputs))
    if missing:
        raise ValueError(
            f"the data has no columns {missing}, only {sorted(inputs)}; add them to the CSV files"
        )
    outputs = {}
    for name in NUMBERS:
        logged = _map_values(inputs[name], lambda value: tf.math.log1p(tf.cast(value, tf.float32)))
        outputs[f"{name}_scaled"] = _dense(tft.scale_to_z_score(logged), 0.0)
    for name in BUCKETED:
        outputs[f"{name}_id"] = _dense(tft.bucketize(inputs[name], BUCKETS), BUCKETS)
    for name in VOCABULARIES:
        words = _dense(inputs[name], MISSING_WORD)
        outputs[f"{name}_id"] = tft.compute_and_apply_vocabulary(
            words, top_k=VOCABULARY_TOP_K, num_oov_buckets=OOV_BUCKETS, vocab_filename=name
        )
    for name, size in IDS.items():
        ids = _dense(_map_values(inputs[name], lambda value: tf.cast(value, tf.int64)), 0)
        outputs[f"{name}_id"] = tf.clip_by_value(ids, 0, size - 1)
    fare = _dense(_map_values(inputs["fare"], lambda value: tf.cast(value, tf.float32)), 0.0)
    tips = _dense(_map_values(inputs["tips"], lambda value: tf.cast(value, tf.float32)), 0.0)
    outputs[LABEL] = tf.cast(tips > 0.2 * fare, tf.int64)
    return outputs


def _map_values(value: Any, function: Any) -> Any:
    """Applies a function to a dense tensor, or to a sparse one's values."""
    return (
        tf.sparse.map_values(function, value)
        if isinstance(value, tf.SparseTensor)
        else function(value)
    )


def _dense(value: Any, default: Any) -> tf.Tensor:
    """Returns one value per row: the first if a row has several, the default if it has none."""
    if not isinstance(value, tf.SparseTensor):
        return tf.reshape(value, [-1])
    rows = tf.cast(value.dense_shape[0], tf.int64)
    first = tf.sparse.slice(value, [0, 0], tf.stack([rows, tf.constant(1, tf.int64)]))
    column = tf.SparseTensor(
        first.indices, first.values, tf.stack([rows, tf.constant(1, tf.int64)])
    )
    return tf.squeeze(
        tf.sparse.to_dense(column, default_value=tf.cast(default, value.dtype)), axis=1
    )
