from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.engine.evaluating.sliced_metrics import (
    Slice,
    slice_eval_metrics,
    slice_membership,
    split_by_slice,
)

v1 = tf.compat.v1


def _members(features, *slices):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        made = features()
        return session.run(slice_membership(made, slices))


def _slice(*conditions, excluded=()):
    return Slice(name=str(conditions), conditions=conditions, excluded=excluded)


def _dense():
    return {
        "text": tf.constant([["a"], ["b"], ["a"]]),
        "number": tf.constant([1, 2, 2], tf.int64),
        "share": tf.constant([0.1, 0.2, 0.1]),
        "flag": tf.constant([True, False, True]),
    }


def test_dense_features_of_all_kinds():
    members = _members(
        _dense,
        _slice(("text", "a")),
        _slice(("number", 2)),
        # The value as float32 has it.
        _slice(("share", float(np.float32(0.1)))),
        _slice(("flag", 1)),
        _slice(("text", "a"), ("number", 2)),
        _slice(("text", "z")),
    )
    assert members.dtype == np.int32
    assert members.T.tolist() == [[1, 0, 1], [0, 1, 1], [1, 0, 1], [1, 0, 1], [0, 0, 1], [0, 0, 0]]


def test_rows_with_several_values_or_none():
    def sparse():
        return {"tags": tf.ragged.constant([["a", "b"], [], ["b"]]).to_sparse()}

    def ragged():
        return {"tags": tf.ragged.constant([["a", "b"], [], ["b"]])}

    for features in (sparse, ragged):
        members = _members(
            features,
            _slice(("tags", "a")),
            _slice(("tags", "b")),
            _slice(("tags", None)),
            _slice(("tags", "")),
        )
        assert members.tolist() == [[1, 1, 1, 0], [0, 0, 0, 0], [0, 1, 1, 0]]


def test_excluded():
    named = (("text", "a"),), (("number", 1),)
    other = _slice(("text", None), excluded=named)
    members = _members(_dense, _slice(("text", "a")), other, _slice(("number", 1)))
    assert members.tolist() == [[1, 0, 1], [0, 1, 0], [1, 0, 0]]


def test_a_batch_without_rows():
    members = _members(lambda: {"number": tf.zeros([0, 1], tf.int64)}, _slice(("number", 0)))
    assert members.shape == (0, 1)


def test_static_rows_stay_known():
    with tf.Graph().as_default():
        assert slice_membership(_dense(), [_slice(("number", 1))]).shape == [3, 1]
        unknown = tf.compat.v1.placeholder(tf.int64, [None, 1])
        members = slice_membership({"number": unknown}, [_slice(("number", 1))])
        assert members.shape.as_list() == [None, 1]


def _measured(metric_fn, tensors, membership, names):
    """The metrics after one update."""
    function, given = slice_eval_metrics(metric_fn, tensors, tf.constant(membership), names)
    metrics = function(**given)
    with v1.Session() as session:
        session.run(v1.local_variables_initializer())
        session.run([update for _, update in metrics.values()])
        return session.run({name: value for name, (value, _) in metrics.items()})


def _mean(values, weights=None):
    return {"mean": v1.metrics.mean(values, weights)}


@pytest.mark.parametrize("form", [list, dict])
def test_each_slice_is_measured_on_its_rows(form):
    values, weights = np.float32([1, 2, 3, 4]), np.float32([1, 1, 1, 3])
    membership = np.int32([[1, 0], [1, 1], [0, 0], [0, 1]])
    with tf.Graph().as_default():
        tensors = {"values": tf.constant(values), "weights": tf.constant(weights)}
        given = tensors if form is dict else list(tensors.values())
        found = _measured(_mean, given, membership, ["a", "b"])
    overall, (a, b) = split_by_slice(found, ["a", "b"])
    assert overall == {"mean": np.average(values, weights=weights)}
    assert a == {"mean": 1.5, "example_count": 2}
    assert b == {"mean": np.average([2, 4], weights=[1, 3]), "example_count": 2}


def test_a_name_with_a_slash_belongs_to_its_own_slice():
    values = {"m": 0, "x/m": 1, "m/a": 2, "x/m/a": 3, "example_count/a": 4}
    assert split_by_slice(values, ["a"]) == (
        {"m": 0, "x/m": 1},
        [{"m": 2, "x/m": 3, "example_count": 4}],
    )


def test_metrics_named_as_a_slices_are_refused():
    def metric_fn(values):
        return {"m": v1.metrics.mean(values), "m/a": v1.metrics.mean(values)}

    with (
        tf.Graph().as_default(),
        pytest.raises(ValueError, match="metric 'm/a', which is the name"),
    ):
        _measured(metric_fn, [tf.zeros(1)], np.int32([[1]]), ["a"])


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (lambda: tf.constant(1.0), "does not have the rows of the batch on axis 0"),
        (lambda: tf.zeros([3, 2]), "does not have the rows of the batch on axis 0"),
        (lambda: tf.sparse.from_dense([[1.0], [2.0]]), "has a SparseTensor"),
    ],
)
def test_tensors_without_rows_are_refused(tensor, says):
    with tf.Graph().as_default(), pytest.raises(ValueError, match=says):
        _measured(_mean, [tensor()], np.int32([[1], [0]]), ["a"])
