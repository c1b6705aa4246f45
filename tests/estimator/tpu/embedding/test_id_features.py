"""Lookups of ids and of the positions of a sequence; sparse tensors as rows that are cut and put together."""

import logging

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.tpu.embedding import id_features
from tfx_tpu_trainer.estimator.tpu.embedding.id_features import (
    GradientTap,
    decode_rows,
    encode_rows,
)

v1 = tf.compat.v1


TABLE = np.float32([[0, 1], [2, 3], [4, 5], [6, 7]])


def _run(make, *arguments, **options):
    with tf.Graph().as_default(), v1.Session() as session:
        table = v1.get_variable("table", initializer=TABLE, use_resource=True)
        result = make(table, *(argument() for argument in arguments), **options)
        session.run(v1.global_variables_initializer())
        return session.run(result)


def _sparse(indices, values, shape, dtype=np.int64):
    return lambda: tf.SparseTensor(indices, np.array(values, dtype), shape)


@pytest.mark.parametrize(
    ("combiner", "expected"),
    [("sum", [[8, 10], [0, 0], [2, 3]]), ("mean", [[4, 5], [0, 0], [2, 3]])],
)
@pytest.mark.behaviour(369)
def test_ids_of_a_row_are_combined_and_no_ids_are_zeros(combiner, expected):
    ids = _sparse([[0, 0], [0, 2], [2, 1]], [1, 3, 1], [3, 3])
    got = _run(id_features.look_up, ids, lambda: None, combiner=combiner)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("combiner", "divisor"), [("sum", 1), ("mean", 4), ("sqrtn", 10**0.5)])
@pytest.mark.behaviour(369)
def test_weights(combiner, divisor):
    ids = _sparse([[0, 0], [0, 1]], [1, 3], [1, 2])
    weights = _sparse([[0, 0], [0, 1]], [1, 3], [1, 2], np.float32)
    got = _run(id_features.look_up, ids, weights, combiner=combiner)
    np.testing.assert_allclose(got, [(TABLE[1] + 3 * TABLE[3]) / divisor], rtol=1e-6)


@pytest.mark.parametrize("ids", [[3, 0], [[3], [0]]])
@pytest.mark.behaviour(365)
def test_dense_ids_are_looked_up_one_by_one(ids):
    got = _run(id_features.look_up_dense, lambda: tf.constant(ids))
    np.testing.assert_array_equal(got, TABLE[[3, 0]])


# Row 0: id 1 at position 0, ids 2 and 3 at position 2; row 1: nothing; row 2: id 3 at 1, 1 at 4.
IDS = [[0, 0, 0], [0, 2, 0], [0, 2, 1], [2, 1, 0], [2, 4, 1]]


SEQUENCE = _sparse(IDS, [1, 2, 3, 3, 1], [3, 5, 2])


@pytest.mark.parametrize("length", [1, 3, 6])
@pytest.mark.behaviour(370, 371)
def test_positions_are_combined_cut_and_filled_with_zeros(length):
    got = _run(
        id_features.look_up_sequence, SEQUENCE, lambda: None, combiner="mean", max_length=length
    )
    expected = np.zeros((3, 6, 2), np.float32)
    expected[0, 0], expected[0, 2] = TABLE[1], (TABLE[2] + TABLE[3]) / 2
    expected[2, 1], expected[2, 4] = TABLE[3], TABLE[1]
    np.testing.assert_array_equal(got, expected[:, :length])


@pytest.mark.behaviour(371)
def test_positions_are_combined_by_weight():
    weights = _sparse(IDS, [2, 1, 3, 1, 1], [3, 5, 2], np.float32)
    got = _run(id_features.look_up_sequence, SEQUENCE, weights, combiner="sum", max_length=3)
    np.testing.assert_array_equal(got[0, 2], TABLE[2] + 3 * TABLE[3])
    np.testing.assert_array_equal(got[0, 0], 2 * TABLE[1])


@pytest.mark.parametrize(("length", "expected"), [(6, [3, 0, 5]), (2, [2, 0, 2])])
@pytest.mark.behaviour(370)
def test_lengths_reach_to_the_last_id_up_to_the_maximum(length, expected):
    got = _run(lambda table, ids: id_features.sequence_lengths(ids, max_length=length), SEQUENCE)
    assert got.tolist() == expected


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.behaviour(369)
def test_as_tensorflows_own_lookup_gradients_included(combiner, weighted):
    random = np.random.RandomState(2)
    places = np.argwhere(random.uniform(size=(6, 5)) < 0.5)
    values = random.randint(-1, 4, len(places))
    weighed = random.randint(-1, 4, len(places)).astype(np.float32)

    def both(table):
        ids = tf.SparseTensor(places, values.astype(np.int64), [6, 5])
        weights = tf.SparseTensor(places, weighed, [6, 5]) if weighted else None
        expected = tf.nn.safe_embedding_lookup_sparse(table, ids, weights, combiner=combiner)
        there = id_features.is_there(ids, weights, combiner=combiner)
        kept = tf.sparse.retain(ids, there)
        kept_weights = tf.sparse.retain(weights, there) if weighted else None
        got = id_features.look_up(table, kept, kept_weights, combiner=combiner)
        return [
            [result, tf.convert_to_tensor(tf.gradients(tf.square(result), table)[0])]
            for result in (got, expected)
        ]

    got, expected = _run(both)
    for ours, ordinary in zip(got, expected):
        np.testing.assert_allclose(ours, ordinary, rtol=1e-5, atol=1e-6)


VALUE = np.float32([[1, 2], [3, 4]])


def _model(tap: GradientTap, minimize) -> None:
    x = tap.tap("x", tf.constant(VALUE))
    weights = v1.get_variable("weights", initializer=np.float32([[2], [3]]))
    minimize(tf.reduce_sum(tf.matmul(x, weights) ** 2))


def _gradient(minimize) -> np.ndarray:
    with fresh_graph(), v1.Session() as session:
        tap = GradientTap()
        _model(tap, minimize)
        gradient = tap.close()["x"]
        session.run(v1.global_variables_initializer())
        return session.run(gradient)


EXPECTED = 2 * (VALUE @ [[2], [3]]) * np.float32([[2, 3]])


def test_the_gradient_of_a_loss():
    got = _gradient(v1.train.GradientDescentOptimizer(0.1).minimize)
    np.testing.assert_allclose(got, EXPECTED, rtol=1e-6)


@pytest.mark.behaviour(372)
def test_scaled_as_the_model_scales_it():
    with tf_private.replicas(4):
        optimizer = v1.tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
        got = _gradient(lambda loss: optimizer.compute_gradients(loss))
    np.testing.assert_allclose(got, EXPECTED / 4, rtol=1e-6)


def test_a_model_may_clip_every_gradient_one_by_one():
    def minimize(loss):
        optimizer = v1.train.AdamOptimizer(0.1)
        pairs = optimizer.compute_gradients(loss)
        optimizer.apply_gradients([(tf.clip_by_norm(g, 1.0), v) for g, v in pairs])

    np.testing.assert_allclose(_gradient(minimize), EXPECTED, rtol=1e-6)


@pytest.mark.parametrize("make", [v1.train.AdamOptimizer, v1.train.AdagradOptimizer])
def test_the_stand_in_is_neither_saved_nor_trained_on(make):
    with fresh_graph():
        tap = GradientTap()
        _model(tap, make(0.1).minimize)
        tap.close()
        assert [v.op.name for v in v1.trainable_variables()] == ["weights"]
        assert not [v.op.name for v in v1.global_variables() if "tap" in v.op.name]
        assert [v.op.name for v in v1.local_variables() if "tap" in v.op.name]


def test_a_tensor_that_is_not_used_has_zeros_and_a_warning(caplog):
    with fresh_graph(), v1.Session() as session:
        tap = GradientTap()
        tap.tap("idle", tf.constant(VALUE))
        _model(tap, v1.train.GradientDescentOptimizer(0.1).minimize)
        with caplog.at_level(logging.WARNING, logger="tensorflow"):
            gradients = tap.close()
        assert session.run(gradients["idle"]).tolist() == [[0, 0], [0, 0]]
    assert "embeddings of ['idle'] have undefined gradients" in caplog.text


def test_through_a_loop():
    def minimize(loss):
        doubled = tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, 2 * x), (0, loss))[1]
        v1.train.GradientDescentOptimizer(0.1).minimize(doubled)

    np.testing.assert_allclose(_gradient(minimize), 8 * EXPECTED, rtol=1e-6)


DENSE = np.array([[1, 0, 2], [0, 0, 0], [0, 3, 0], [4, 5, 6]])


def _dense_of(make):
    with tf.Graph().as_default(), v1.Session() as session:
        return session.run(tf.sparse.to_dense(make()))


def _rows(dense=DENSE):
    return encode_rows(tf.sparse.from_dense(tf.constant(dense, tf.int64)), rows=len(dense))


def test_rows_come_back_as_they_were():
    assert (
        _dense_of(lambda: decode_rows(_rows(), dtype=tf.int64, rank=2)).tolist() == DENSE.tolist()
    )


def test_cut_and_put_together_again():
    def swapped():
        first, last = tf.split(_rows(), 2)
        return decode_rows(tf.concat([last, first], axis=0), dtype=tf.int64, rank=2)

    assert _dense_of(swapped).tolist() == DENSE[[2, 3, 0, 1]].tolist()


def test_padding_is_rows_without_values():
    def padded():
        return decode_rows(tf.pad(_rows(), [[0, 2], [0, 0]]), dtype=tf.int64, rank=2, padded=True)

    expected = np.concatenate([DENSE, np.zeros((2, 3), int)])
    assert _dense_of(padded).tolist() == expected.tolist()


@pytest.mark.parametrize("rows", [1, 4])
def test_rows_of_padding_only(rows):
    def padding():
        return decode_rows(tf.fill([rows, 3], ""), dtype=tf.float32, rank=3, padded=True)

    assert _dense_of(padding).shape == (rows, 0, 0)


def test_no_rows_at_all():
    """A source that has ended gives none."""
    with tf.Graph().as_default(), v1.Session() as session:
        sparse = decode_rows(tf.zeros([0, 3], tf.string), dtype=tf.int64, rank=2, padded=True)
        assert session.run(sparse).values.tolist() == []


def test_the_number_of_rows_is_static_where_it_is_known():
    with tf.Graph().as_default():
        sparse = v1.sparse_placeholder(tf.int64, [None, 3])
        assert encode_rows(sparse, rows=5).shape.as_list() == [5, 3]
        assert encode_rows(sparse, rows=None).shape.as_list() == [None, 3]
