from __future__ import annotations

import os
from pathlib import Path

import tensorflow as tf
from sklearn.datasets import load_digits

from pipelines.digits.data import write_digits


def test_all_digits_are_written_and_an_equal_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "data" / "digits.tfrecord"
    write_digits(path)
    rows = [
        tf.train.Example.FromString(row)
        for row in tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
    ]
    images, digits = load_digits(return_X_y=True)
    assert len(rows) == len(images) == 1797
    assert list(rows[0].features.feature["pixels"].int64_list.value) == images[0].tolist()
    assert [row.features.feature["digit"].int64_list.value[0] for row in rows] == digits.tolist()

    os.utime(path, (1_000_000, 1_000_000))
    write_digits(path)
    assert path.stat().st_mtime == 1_000_000
    assert [entry.name for entry in path.parent.iterdir()] == ["digits.tfrecord"]

    path.write_bytes(b"half of it")
    write_digits(path)
    assert path.stat().st_size > 100_000
