"""Tests TransformServing: raw tf.Examples or named tensors in, the model's features out."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests import tfx_testdata
from tests.components.inputs.conftest import LABEL, ROWS, serialized
from tfx_tpu_trainer.components.inputs import MISSING_INTEGER, TransformServing
from tfx_tpu_trainer.components.inputs import _serving as module
from tfx_tpu_trainer.components.inputs._serving import label_only_raw_features, needed_raw_features
from tfx_tpu_trainer.estimator.extending import host_signatures_of

v1 = tf.compat.v1

FEATURES = {"miles_xf", "fare_xf", "company_xf", "tags_xf", "stops_xf", "payment_xf", "hour_xf"}


class _Receiver:
    """A receiver in its own graph, with an initialized session."""

    def __init__(self, transform_graph, label_key=LABEL):
        self.graph = tf.Graph()
        with self.graph.as_default():
            serving = TransformServing(transform_graph_path=transform_graph, label_key=label_key)
            self.receiver = serving()
            self.host_signatures = host_signatures_of(self.receiver)
            self.session = v1.Session()
            self.session.run([v1.global_variables_initializer(), v1.tables_initializer()])

    def features(self, examples):
        return self.session.run(
            self.receiver.features, {self.receiver.receiver_tensors["examples"]: examples}
        )

    def transformed(self, examples):
        signature = self.host_signatures["transform_features"]
        return self.session.run(signature.outputs, {signature.inputs["examples"]: examples})


@pytest.fixture(scope="module")
def receiver(transform_graph):
    return _Receiver(transform_graph)


def test_a_request_needs_no_label(receiver):
    features = receiver.features([serialized(row, without=["tips"]) for row in ROWS])
    assert set(features) == FEATURES
    miles = np.array([1.0, 3.0, 5.0])
    np.testing.assert_allclose(
        features["miles_xf"][:, 0], (miles - miles.mean()) / miles.std(), rtol=1e-6
    )
    np.testing.assert_allclose(features["fare_xf"][:, 0], [1.0, 2.0, 0.5])
    np.testing.assert_allclose(features["stops_xf"][:, 0], [3.5, 0.0, 4.0])
    assert features["hour_xf"][:, 0].tolist() == [8, 0, 24]


def test_unseen_words_and_empty_lists_are_served(receiver):
    row = {"miles": [1.0], "fare": [1.0], "company": [b"unseen"]}
    features = receiver.features([serialized(row)])
    assert features["company_xf"].tolist() == [[2]]
    assert features["tags_xf"].values.size == 0


def test_a_raw_feature_that_the_model_needs_is_required(receiver):
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"fare.* is required"):
        receiver.features([serialized(ROWS[0], without=["fare"])])


def test_transform_features_gives_the_label_too(receiver):
    values = receiver.transformed([serialized(row) for row in ROWS])
    assert values[LABEL][:, 0].tolist() == [1, 0, 1]
    # Sparse features are dense here: a signature's outputs are plain tensors.
    assert values["tags_xf"].shape == (3, 2)
    assert set(values) == {*FEATURES, LABEL}


def test_transform_features_requires_the_label(receiver):
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"tips.* is required"):
        receiver.transformed([serialized(ROWS[0], without=["tips"])])


def test_label_only_raw_features(transform_graph):
    for labels, expected in (([LABEL], {"tips"}), ([], frozenset())):
        needed = functools.partial(needed_raw_features, transform_graph, labels)
        assert label_only_raw_features(transform_graph, labels, needed) == expected


def test_needed_raw_features(transform_graph):
    needed = {"miles", "fare", "company", "tags", "stops", "payment", "hour"}
    assert needed_raw_features(transform_graph, [LABEL]) == needed
    assert needed_raw_features(transform_graph, []) == needed | {"tips"}


def test_without_a_label_every_feature_goes_to_the_model(transform_graph):
    receiver = _Receiver(transform_graph, label_key=None)
    assert LABEL in receiver.features([serialized(ROWS[0])])


def test_where_the_raw_schema_requires_nothing_an_empty_request_is_served():
    # The taxi schema of the tfx wheel has no shapes: every raw feature may be missing.
    receiver = _Receiver(tfx_testdata.TRANSFORM_GRAPH, label_key="tips_xf")
    features = receiver.features([tf.train.Example().SerializeToString()])
    assert "tips_xf" not in features and len(features) == 16
    assert all(value.shape == (1, 1) for value in features.values())


def parsed(dtype, values, *, single=False):
    """Returns the values of each row that an input represents, in the form of parse_example."""
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
        inputs = host_signatures_of(serving())["predict_raw"].inputs
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
