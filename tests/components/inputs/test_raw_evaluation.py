"""RawEvaluationInput against TransformedInput, on the taxi trips of the tfx wheel, raw and transformed."""

from __future__ import annotations

import os

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_transform as tft

from tests import tfx_testdata
from tfx_tpu_trainer.components.inputs import RAW_PREFIX, RawEvaluationInput

_RAW_FILES = os.path.join(tfx_testdata.RAW_EXAMPLES, "Split-eval", "*")


@pytest.fixture(scope="module")
def batches():
    """All batches, read in a v1 graph as an estimator reads them."""
    read = RawEvaluationInput(
        transform_graph_path=tfx_testdata.TRANSFORM_GRAPH,
        file_patterns=(_RAW_FILES,),
        label_key=tfx_testdata.LABEL,
        raw_features=("payment_type", "trip_miles"),
    )
    with tf.Graph().as_default():
        dataset = read.eval_fn()({"batch_size": 1000})
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        batch = iterator.get_next()
        found = []
        with tf.compat.v1.Session() as session:
            session.run(iterator.initializer)
            while True:
                try:
                    found.append(session.run(batch))
                except tf.errors.OutOfRangeError:
                    return found


def _transformed():
    """The transformed rows, by feature."""
    spec = tft.TFTransformOutput(tfx_testdata.TRANSFORM_GRAPH).transformed_feature_spec()
    (path,) = tf.io.gfile.glob(tfx_testdata.files("eval"))
    data = tf.data.TFRecordDataset(path, compression_type="GZIP").batch(100_000)
    return tf.io.parse_example(next(iter(data)), spec)


def test_the_rows_are_those_that_transform_has_written(batches):
    expected = _transformed()
    expected = {name: value.numpy() for name, value in expected.items()}
    label = expected.pop(tfx_testdata.LABEL)
    read = {name: np.concatenate([f[name] for f, _ in batches]) for name in expected}
    labels = np.concatenate([labels for _, labels in batches])
    assert len(labels) == tfx_testdata.ROWS["eval"]
    assert sum(labels) == sum(label)
    # Beam does not keep the order of rows.
    for name, values in expected.items():
        np.testing.assert_array_equal(np.sort(read[name], axis=0), np.sort(values, axis=0))


def test_batches_are_full_but_for_the_last(batches):
    assert [len(labels) for _, labels in batches] == [1000] * 5 + [91]


def test_raw_features_are_beside(batches):
    features, _ = batches[0]
    payments = features[RAW_PREFIX + "payment_type"]
    assert {b"Cash", b"Credit Card"} <= set(np.ravel(getattr(payments, "values", payments)))
    assert RAW_PREFIX + "trip_miles" in features
    assert "trip_miles_xf" in features
