from __future__ import annotations

import collections

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator._engine.log_lines import log_lines
from tfx_tpu_trainer.estimator._engine.feeding.input_pipeline import (
    as_input_tensors,
    split_features_and_labels,
)
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

v1 = tf.compat.v1

Point = collections.namedtuple("Point", ["x", "y"])


def _rows_of_a_session(tensors, hooks, scaffold=None) -> list:
    """What one session reads until the input ends."""
    rows = []
    creator = v1.train.ChiefSessionCreator(scaffold=scaffold)
    with v1.train.MonitoredSession(session_creator=creator, hooks=hooks) as session:
        while not session.should_stop():
            rows.append(session.run(tensors))
    return rows


@pytest.mark.parametrize(
    ("element", "features", "labels"),
    [
        ("x", "x", None),
        ({"x": 1}, {"x": 1}, None),
        (({"x": 1}, "y"), {"x": 1}, "y"),
        ([{"x": 1}, "y"], {"x": 1}, "y"),
        (({"x": 1}, None), {"x": 1}, None),
        (({"x": {"deep": 1}}, {"y": 2}), {"x": {"deep": 1}}, {"y": 2}),
        (Point(1, 2), 1, 2),
        (None, None, None),
        ((None, "y"), None, "y"),
        ((Point(1, 2), "y"), Point(1, 2), "y"),
    ],
)
@pytest.mark.behaviour(116, 124)
def test_features_and_labels(element, features, labels):
    assert split_features_and_labels(element) == (features, labels)


@pytest.mark.parametrize("element", [(), ("x",), ("x", "y", "z"), ["x", "y", "z"]])
@pytest.mark.behaviour(117)
def test_a_tuple_or_list_of_another_length_is_refused(element):
    with pytest.raises(ValueError, match=f"len 2 tuple; got {len(element)} elements"):
        split_features_and_labels(element)


@pytest.mark.behaviour(116)
def test_a_dataset_is_read_to_its_end():
    with fresh_graph():
        dataset = tf.data.Dataset.from_tensor_slices(([1, 2, 3], [10, 20, 30]))
        inputs = as_input_tensors(dataset)
        rows = _rows_of_a_session([inputs.features, inputs.labels], inputs.hooks)
    np.testing.assert_array_equal(rows, [[1, 10], [2, 20], [3, 30]])


@pytest.mark.behaviour(143)
def test_every_session_starts_the_dataset_anew():
    with fresh_graph():
        inputs = as_input_tensors(tf.data.Dataset.range(3))
        first = _rows_of_a_session(inputs.features, inputs.hooks)
        again = _rows_of_a_session(inputs.features, inputs.hooks)
    assert first == again == [0, 1, 2]


def test_a_users_local_init_op_leaves_the_dataset_alone():
    with fresh_graph():
        inputs = as_input_tensors(tf.data.Dataset.range(2))
        scaffold = v1.train.Scaffold(local_init_op=tf.no_op())
        assert _rows_of_a_session(inputs.features, inputs.hooks, scaffold) == [0, 1]


@pytest.mark.behaviour(116)
def test_tensors_are_taken_as_they_are():
    with fresh_graph():
        features, labels = {"x": tf.constant([1.0])}, tf.constant([2.0])
        inputs = as_input_tensors((features, labels))
        assert inputs.features is features
        assert inputs.labels is labels
        assert inputs.hooks == ()


@pytest.mark.behaviour(137)
def test_sparse_ragged_and_short_batches_are_taken():
    with fresh_graph():
        rows = {
            "dense": tf.constant([1.0, 2.0, 3.0]),
            "sparse": tf.sparse.from_dense([[0, 5], [6, 0], [0, 0]]),
            "ragged": tf.ragged.constant([[1], [2, 3], []]),
        }
        inputs = as_input_tensors(tf.data.Dataset.from_tensor_slices(rows).batch(2))
        assert inputs.features["dense"].shape.as_list() == [None]
        batches = _rows_of_a_session(inputs.features, inputs.hooks)
    assert [batch["dense"].tolist() for batch in batches] == [[1, 2], [3]]
    assert [batch["sparse"].values.tolist() for batch in batches] == [[5, 6], []]
    assert [batch["ragged"].to_list() for batch in batches] == [[[1], [2, 3]], [[]]]


@pytest.mark.parametrize(
    ("element", "said"),
    [(None, "input_fn returned None: "), ((None, 1), "input_fn returned no features (None): ")],
)
def test_what_has_no_features_is_told_of(caplog, element, said):
    with log_lines(caplog) as logged:
        split_features_and_labels(element)
    assert any(line.startswith(said) for line in logged)
