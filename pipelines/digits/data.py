"""Writes scikit-learn's digits as a TFRecord of tf.Examples, the same bytes each time."""

from __future__ import annotations

import shutil
from pathlib import Path

from pipelines.digits.config import Config
from tfx_tpu_trainer._support.whole_files import file_written_whole


def prepare_data(config: Config) -> str:
    """Returns the folder of TFRecords: the config's, or one under the root with scikit-learn's digits.

    Args:
        config: The pipeline's config.

    Returns:
        Path of the folder.
    """
    if config.data:
        return config.data
    folder = Path(config.root) / "data"
    write_digits(folder / "digits.tfrecord")
    return str(folder)


def write_digits(path: Path) -> None:
    """Writes all 1,797 digits, in scikit-learn's order.

    ImportExampleGen's fingerprint of its input contains the file's time, so a file that already has these bytes is
    kept. Otherwise a second run could not use TFX's cache.

    Args:
        path: The file to write; its folder is created if missing.
    """
    import tensorflow as tf
    from sklearn.datasets import load_digits

    def int64s(values: list[int]) -> tf.train.Feature:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    images, digits = load_digits(return_X_y=True)
    with file_written_whole(path) as fresh:
        with tf.io.TFRecordWriter(fresh) as writer:
            for image, digit in zip(images.astype(int).tolist(), digits.tolist()):
                feature = {"pixels": int64s(image), "digit": int64s([digit])}
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString(deterministic=True))
        if path.exists() and path.read_bytes() == Path(fresh).read_bytes():
            shutil.copystat(path, fresh)
