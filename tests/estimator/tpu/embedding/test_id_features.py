"""Sparse tensors as rows that are cut, padded and put together."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator.tpu.embedding.id_features import decode_rows, encode_rows

v1 = tf.compat.v1

DENSE = np.array([[1, 0, 2], [0, 0, 0], [0, 3, 0], [4, 5, 6]])


def _run(make):
    with tf.Graph().as_default(), v1.Session() as session:
        return session.run(tf.sparse.to_dense(make()))


def _rows(dense=DENSE):
    return encode_rows(tf.sparse.from_dense(tf.constant(dense, tf.int64)), rows=len(dense))


def test_rows_come_back_as_they_were():
    assert _run(lambda: decode_rows(_rows(), dtype=tf.int64, rank=2)).tolist() == DENSE.tolist()


def test_cut_and_put_together_again():
    def swapped():
        first, last = tf.split(_rows(), 2)
        return decode_rows(tf.concat([last, first], axis=0), dtype=tf.int64, rank=2)

    assert _run(swapped).tolist() == DENSE[[2, 3, 0, 1]].tolist()


def test_padding_is_rows_without_values():
    def padded():
        return decode_rows(tf.pad(_rows(), [[0, 2], [0, 0]]), dtype=tf.int64, rank=2, padded=True)

    expected = np.concatenate([DENSE, np.zeros((2, 3), int)])
    assert _run(padded).tolist() == expected.tolist()


@pytest.mark.parametrize("rows", [1, 4])
def test_rows_of_padding_only(rows):
    def padding():
        return decode_rows(tf.fill([rows, 3], ""), dtype=tf.float32, rank=3, padded=True)

    assert _run(padding).shape == (rows, 0, 0)


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
