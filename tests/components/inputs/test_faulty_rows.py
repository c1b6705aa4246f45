"""Values of dense, sparse and ragged features as a session returns them, row by row."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.components.inputs._faulty_rows import values_by_row

v1 = tf.compat.v1

EXAMPLES = {
    "dense": tf.io.FixedLenFeature([2], tf.int64),
    "sparse": tf.io.VarLenFeature(tf.int64),
    "indexed": tf.io.SparseFeature("at", "values", tf.int64, 9),
    "ragged": tf.io.RaggedFeature(tf.int64, value_key="values"),
    "pairs": tf.io.RaggedFeature(
        tf.int64, value_key="pairs", partitions=[tf.io.RaggedFeature.UniformRowLength(2)]
    ),
    "nested": tf.io.RaggedFeature(
        tf.int64, value_key="values", partitions=[tf.io.RaggedFeature.RowLengths("lengths")]
    ),
}
ROWS = [
    {"dense": [1, 2], "sparse": [3], "at": [4, 7], "values": [5, 6], "lengths": [0, 2]},
    {"dense": [7, 8], "pairs": [1, 2, 3, 4]},
    {"dense": [9, 9], "sparse": [4, 5], "at": [0], "values": [1], "lengths": [1]},
]
# Which list of a row each feature's values are.
LISTS = {"indexed": "values", "ragged": "values", "nested": "values"}


def _serialized(row):
    example = tf.train.Example()
    for name, values in row.items():
        example.features.feature[name].int64_list.value.extend(values)
    return example.SerializeToString()


@pytest.mark.parametrize("count", [3, 0])
@pytest.mark.parametrize("name", EXAMPLES)
def test_each_row_has_its_own_values(name, count):
    with tf.Graph().as_default(), v1.Session() as session:
        records = tf.constant([_serialized(row) for row in ROWS[:count]], tf.string, [count])
        value = session.run(tf.io.parse_example(records, {name: EXAMPLES[name]})[name])
    found = [row.tolist() for row in values_by_row(value)]
    assert found == [row.get(LISTS.get(name, name), []) for row in ROWS[:count]]


def test_values_that_are_not_in_the_order_of_their_rows():
    indices, shape = np.array([[2, 0], [0, 1], [2, 1]]), np.array([4, 2])
    value = v1.SparseTensorValue(indices, np.array([b"a", b"b", b"c"], object), shape)
    assert [row.tolist() for row in values_by_row(value)] == [[b"b"], [], [b"a", b"c"], []]
