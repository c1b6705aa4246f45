"""Makes the data, identical in every process: arrays from a fixed seed, and TFRecords in Transform's form.

Unlike a pipeline's, the records are not compressed: inflating them would take most of the measured time.
"""

import pathlib

import numpy as np
import tensorflow as tf

from benchmarks import models
from benchmarks.models import CLASSES, IDS, IMAGE_SIZE, MLP_FEATURES, MODELS, NUMBERS

RECORDS = "wide_and_deep.tfrecord"
LABEL = "label"
_ROWS = {"mlp": 4096, "cnn": 1024, "wide_and_deep": 20480, "bert": 64, "resnet": 128}
PARSED = {
    **{name: tf.io.FixedLenFeature([], tf.int64) for name in IDS},
    **{name: tf.io.FixedLenFeature([], tf.float32) for name in NUMBERS},
    LABEL: tf.io.FixedLenFeature([], tf.int64),
}


def batches(model: str, folder: str | pathlib.Path) -> tf.data.Dataset:
    """Returns an endless dataset of (features, labels) in a fixed order."""
    size = MODELS[model].batch_size
    if model == "wide_and_deep":
        records = tf.data.TFRecordDataset(str(pathlib.Path(folder) / RECORDS))
        serialized = records.repeat().batch(size, drop_remainder=True)
        dataset = serialized.map(_parse, num_parallel_calls=tf.data.AUTOTUNE)
    else:
        dataset = tf.data.Dataset.from_tensor_slices(_ARRAYS[model]()).repeat()
        dataset = dataset.batch(size, drop_remainder=True)
    return dataset.prefetch(tf.data.AUTOTUNE)


def write_records(folder: str | pathlib.Path) -> None:
    """Writes the wide-and-deep model's records."""
    generator = np.random.default_rng(seed=2)
    rows = _ROWS["wide_and_deep"]
    ids = {name: generator.integers(0, size, rows) for name, size in IDS.items()}
    numbers = {name: generator.standard_normal(rows, dtype=np.float32) for name in NUMBERS}
    score = sum(numbers.values()) + sum(values % 3 - 1 for values in ids.values())
    labels = (score > 0).astype(np.int64)
    with tf.io.TFRecordWriter(str(pathlib.Path(folder) / RECORDS)) as writer:
        for row in range(rows):
            feature = {name: _int64(values[row]) for name, values in ids.items()}
            feature |= {name: _float(values[row]) for name, values in numbers.items()}
            feature[LABEL] = _int64(labels[row])
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString(deterministic=True))


def _parse(serialized: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    features = tf.io.parse_example(serialized, PARSED)
    return features, features.pop(LABEL)


def _mlp_arrays() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed=0)
    features = generator.standard_normal((_ROWS["mlp"], MLP_FEATURES), dtype=np.float32)
    return features, features[:, :CLASSES].argmax(axis=1)


def _cnn_arrays() -> tuple[np.ndarray, np.ndarray]:
    """Makes images of noise with a bright square, whose place is the class."""
    generator = np.random.default_rng(seed=1)
    rows = _ROWS["cnn"]
    images = generator.integers(0, 128, (rows, IMAGE_SIZE, IMAGE_SIZE, 1), dtype=np.uint8)
    labels = generator.integers(0, CLASSES, rows)
    for image, label in zip(images, labels):
        top, left = 4 + 12 * (label // 5), 1 + 5 * (label % 5)
        image[top : top + 5, left : left + 5] += 100
    return images, labels


def _int64(value: int) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def _float(value: float) -> tf.train.Feature:
    return tf.train.Feature(float_list=tf.train.FloatList(value=[value]))


def _bert_arrays() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Makes sentences of token ids, some of them masked."""
    generator = np.random.default_rng(seed=3)
    shape = (_ROWS["bert"], models.LENGTH)
    words = generator.integers(0, models.VOCABULARY, shape, dtype=np.int32)
    places = generator.permuted(np.tile(np.arange(shape[1]), (shape[0], 1)), axis=1)
    masked = np.sort(places[:, : models.MASKED]).astype(np.int32)
    labels = np.take_along_axis(words, masked, axis=1).astype(np.int64)
    np.put_along_axis(words, masked, 103, axis=1)
    kinds = (np.arange(shape[1]) >= shape[1] // 2).astype(np.int32)
    features = {
        "words": words,
        "kinds": np.tile(kinds, (shape[0], 1)),
        "there": np.ones(shape, np.int32),
        "masked": masked,
    }
    return features, labels


def _resnet_arrays() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed=4)
    shape = (_ROWS["resnet"], models.RESNET_IMAGE_SIZE, models.RESNET_IMAGE_SIZE, 3)
    images = generator.integers(0, 256, shape, dtype=np.uint8)
    return images, generator.integers(0, models.RESNET_CLASSES, shape[0])


_ARRAYS = {"mlp": _mlp_arrays, "cnn": _cnn_arrays, "bert": _bert_arrays, "resnet": _resnet_arrays}
