"""Raw features as plain tensors: which inputs there are, and what they stand for."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.components.inputs.raw_rows import LABEL
from tfx_tpu_trainer.components.inputs import MISSING_INTEGER, TransformServing
from tfx_tpu_trainer.components.inputs import _raw_features as module

v1 = tf.compat.v1


def parsed(dtype, values, *, single=False):
    """What an input stands for, as (values of each row) in the way of parse_example."""
    with tf.Graph().as_default(), v1.Session() as session:
        feature = tf.io.VarLenFeature(dtype)
        inputs = module.raw_placeholders({"x": feature}, frozenset(["x"] if single else []))
        return session.run(module.as_parsed(feature, inputs["x"]), {inputs["x"]: values})


@pytest.mark.parametrize(
    ("dtype", "missing", "present"),
    [
        (tf.string, b"", [b"a", b"b", b"c"]),
        (tf.float32, np.nan, [0.0, -1.5, np.inf]),
        (tf.int64, MISSING_INTEGER, [0, -1, 9]),
    ],
)
def test_missing_values_are_left_out_and_the_others_move_up(dtype, missing, present):
    a, b, c = present
    sparse = parsed(dtype, [[a, missing, b], [missing, missing, missing], [missing, missing, c]])
    assert sparse.indices.tolist() == [[0, 0], [0, 1], [2, 0]]
    assert sparse.values.tolist() == present
    assert sparse.dense_shape.tolist() == [3, 2]


def test_a_single_value_needs_no_axis():
    sparse = parsed(tf.float32, [1.0, np.nan, 3.0], single=True)
    assert sparse.indices.tolist() == [[0, 0], [2, 0]]
    assert sparse.dense_shape.tolist() == [3, 1]


@pytest.mark.parametrize(
    "values",
    [
        *(np.zeros([2, 0]), np.full([2, 1], np.nan), np.zeros([0, 3])),
        *(np.full([2], np.nan), np.zeros([0])),
    ],
)
def test_nothing_at_all_is_as_it_is_parsed(values):
    sparse = parsed(tf.float32, values, single=values.ndim == 1)
    examples = [tf.train.Example().SerializeToString()] * len(values)
    expected = tf.io.parse_example(
        tf.constant(examples, tf.string), {"x": tf.io.VarLenFeature(tf.float32)}
    )["x"]
    assert sparse.values.tolist() == []
    assert sparse.indices.shape == (0, 2)
    assert sparse.dense_shape.tolist() == expected.dense_shape.numpy().tolist()


def test_a_fixed_length_is_taken_as_it_is():
    feature = tf.io.FixedLenFeature([2, 3], tf.int64)
    with tf.Graph().as_default():
        inputs = module.raw_placeholders({"x": feature}, frozenset())
        assert inputs["x"].shape.as_list() == [None, 2, 3]
        assert module.as_parsed(feature, inputs["x"]) is inputs["x"]


def test_an_input_for_each_raw_feature_that_a_prediction_needs(transform_graph):
    serving = TransformServing(transform_graph_path=transform_graph, label_key=LABEL)
    with tf.Graph().as_default():
        inputs = serving().host_signatures["predict_raw"].inputs
    found = {name: (tensor.dtype, tensor.shape.as_list()) for name, tensor in inputs.items()}
    assert found == {
        "miles": (tf.float32, [None, 1]),
        "fare": (tf.float32, [None, 1]),
        "company": (tf.string, [None, 1]),
        "tags": (tf.string, [None, None]),
        "stops": (tf.float32, [None, None]),
        "payment": (tf.string, [None]),
        "hour": (tf.int64, [None]),
    }


def test_features_that_no_plain_tensor_carries():
    spec = {
        "plain": tf.io.VarLenFeature(tf.int64),
        "sparse": tf.io.SparseFeature("i", "v", tf.float32, 9),
        "ragged": tf.io.RaggedFeature(tf.int64),
    }
    assert module.unsupported_features(spec) == ["ragged", "sparse"]
