"""TFRecord files read without eager execution, which programs in TF1 behaviour do not have."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

v1 = tf.compat.v1

_ROWS_AT_ONCE = 1024


def read_tfrecords(paths: Sequence[str], *, limit: int | None = None) -> list[bytes]:
    """Reads the records of files, one file after the other.

    Args:
        paths: The files; those whose names end with `.gz` are compressed.
        limit: How many records at most. Defaults to `None`, all.

    Returns:
        The records.
    """
    found: list[bytes] = []
    for path in paths:
        left = None if limit is None else limit - len(found)
        if left != 0:
            found += _read(path, left)
    return found


def _read(path: str, limit: int | None) -> list[bytes]:
    found: list[bytes] = []
    with tf.Graph().as_default(), tf.device("/cpu:0"):
        data = tf.data.TFRecordDataset(path, "GZIP" if path.endswith(".gz") else "")
        data = data.take(-1 if limit is None else limit).batch(_ROWS_AT_ONCE)
        batch = v1.data.make_one_shot_iterator(data).get_next()
        with v1.Session() as session:
            while True:
                try:
                    found += list(session.run(batch))
                except tf.errors.OutOfRangeError:
                    return found
