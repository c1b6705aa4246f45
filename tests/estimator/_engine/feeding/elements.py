"""Reads datasets of the default graph."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

v1 = tf.compat.v1


def elements(dataset: tf.data.Dataset) -> list[Any]:
    """Returns a dataset's elements to its end."""
    following = v1.data.make_one_shot_iterator(dataset).get_next()
    found = []
    with v1.Session() as session:
        try:
            while True:
                found.append(session.run(following))
        except tf.errors.OutOfRangeError:
            return found
