"""TransformServing: raw tf.Examples in, the model's features out."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests import tfx_testdata
from tests.components.inputs.raw_rows import LABEL, ROWS, serialized
from tfx_tpu_trainer.components.inputs import TransformServing
from tfx_tpu_trainer.components.inputs._raw_features import (
    label_only_raw_features,
    needed_raw_features,
)

v1 = tf.compat.v1

FEATURES = {
    "miles_xf",
    "fare_xf",
    "company_xf",
    "tags_xf",
    "stops_xf",
    "payment_xf",
    "hour_xf",
}


class _Receiver:
    """A receiver in a graph of its own, with an initialized session."""

    def __init__(self, transform_graph, label_key=LABEL):
        self.graph = tf.Graph()
        with self.graph.as_default():
            serving = TransformServing(transform_graph_path=transform_graph, label_key=label_key)
            self.receiver = serving()
            self.session = v1.Session()
            self.session.run([v1.global_variables_initializer(), v1.tables_initializer()])

    def features(self, examples):
        return self.session.run(
            self.receiver.features, {self.receiver.receiver_tensors["examples"]: examples}
        )

    def transformed(self, examples):
        signature = self.receiver.host_signatures["transform_features"]
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
    for label, expected in ((LABEL, {"tips"}), (None, frozenset())):
        needed = functools.partial(needed_raw_features, transform_graph, label)
        assert label_only_raw_features(transform_graph, label, needed) == expected


def test_needed_raw_features(transform_graph):
    needed = {"miles", "fare", "company", "tags", "stops", "payment", "hour"}
    assert needed_raw_features(transform_graph, LABEL) == needed
    assert needed_raw_features(transform_graph, None) == needed | {"tips"}


def test_without_a_label_every_feature_goes_to_the_model(transform_graph):
    receiver = _Receiver(transform_graph, label_key=None)
    assert LABEL in receiver.features([serialized(ROWS[0])])


def test_where_the_raw_schema_requires_nothing_an_empty_request_is_served():
    # The taxi schema of the tfx wheel has no shapes: every raw feature may be missing.
    receiver = _Receiver(tfx_testdata.TRANSFORM_GRAPH, label_key="tips_xf")
    features = receiver.features([tf.train.Example().SerializeToString()])
    assert "tips_xf" not in features and len(features) == 16
    assert all(value.shape == (1, 1) for value in features.values())
