from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.engine.evaluating.slice_membership import Slice, slice_membership


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
