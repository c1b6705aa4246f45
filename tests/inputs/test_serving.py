"""TransformServing: raw tf.Examples in, the model's features out."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests import tfx_testdata
from tests.inputs.conftest import RAW_SPEC, ROWS
from tfx_tpu_trainer.inputs import TransformServing
from tfx_tpu_trainer.inputs.serving import label_only_raw_features

v1 = tf.compat.v1
LABEL = "big_tip_xf"


def _example(row, without=()):
    example = tf.train.Example()
    for name, values in row.items():
        if name not in without:
            feature = example.features.feature[name]
            kind = feature.bytes_list if RAW_SPEC[name].dtype == tf.string else feature.float_list
            kind.value.extend(values)
    return example.SerializeToString()


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
    features = receiver.features([_example(row, without=["tips"]) for row in ROWS])
    assert set(features) == {"miles_xf", "fare_xf", "company_xf", "tags_xf"}
    miles = np.array([1.0, 3.0, 5.0])
    np.testing.assert_allclose(
        features["miles_xf"][:, 0], (miles - miles.mean()) / miles.std(), rtol=1e-6
    )
    np.testing.assert_allclose(features["fare_xf"][:, 0], [1.0, 2.0, 0.5])


def test_unseen_words_and_empty_lists_are_served(receiver):
    row = {"miles": [1.0], "fare": [1.0], "company": [b"unseen"], "tags": []}
    features = receiver.features([_example(row)])
    assert features["company_xf"].tolist() == [[2]]
    assert features["tags_xf"].values.size == 0


def test_a_raw_feature_that_the_model_needs_is_required(receiver):
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"fare.* is required"):
        receiver.features([_example(ROWS[0], without=["fare"])])


def test_transform_features_gives_the_label_too(receiver):
    values = receiver.transformed([_example(row) for row in ROWS])
    assert values[LABEL].tolist() == [[1], [0], [1]]
    # Sparse features are dense here: a signature's outputs are plain tensors.
    assert values["tags_xf"].shape == (3, 2)
    assert set(values) == {"miles_xf", "fare_xf", "company_xf", "tags_xf", LABEL}


def test_transform_features_requires_the_label(receiver):
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"tips.* is required"):
        receiver.transformed([_example(ROWS[0], without=["tips"])])


def test_label_only_raw_features(transform_graph):
    assert label_only_raw_features(transform_graph, LABEL) == {"tips"}
    assert label_only_raw_features(transform_graph, None) == frozenset()


def test_without_a_label_every_feature_goes_to_the_model(transform_graph):
    receiver = _Receiver(transform_graph, label_key=None)
    assert LABEL in receiver.features([_example(ROWS[0])])


def test_where_the_raw_schema_requires_nothing_an_empty_request_is_served():
    # The taxi schema of the tfx wheel has no shapes: every raw feature may be missing.
    receiver = _Receiver(tfx_testdata.TRANSFORM_GRAPH, label_key="tips_xf")
    features = receiver.features([tf.train.Example().SerializeToString()])
    assert "tips_xf" not in features and len(features) == 16
    assert all(value.shape == (1, 1) for value in features.values())
