from __future__ import annotations

import collections

import pytest
import tensorflow as tf

from tfx_tpu_trainer.engine.template import HostFunction, count_rows
from tfx_tpu_trainer.engine.tracing import fresh_graph

v1 = tf.compat.v1


def _digits(first, second):
    return 10 * first + second


def test_b195_a_sequence_is_passed_by_position():
    assert HostFunction("eval_metrics", _digits, [4, 2])() == 42
    assert HostFunction("eval_metrics", _digits, (4, 2))() == 42


def test_b196_a_mapping_is_passed_by_keyword():
    tensors = collections.OrderedDict(second=2, first=4)
    assert HostFunction("host_call", _digits, tensors)() == 42


def test_b197_keys_that_the_function_does_not_take_are_a_type_error():
    with pytest.raises(TypeError, match="third"):
        HostFunction("eval_metrics", _digits, {"first": 1, "third": 3})()


@pytest.mark.parametrize(
    ("make", "rows"),
    [
        (lambda: tf.zeros([3, 2]), 3),
        (lambda: {"b": tf.zeros([5]), "a": tf.zeros([4, 1])}, 4),
        (lambda: (tf.constant(1.0), {"x": tf.zeros([2])}), 2),
        (lambda: ({"x": tf.zeros([6, 1])}, None), 6),
        (lambda: tf.sparse.from_dense([[0, 1], [2, 0], [0, 0]]), 3),
        (lambda: tf.ragged.constant([[1], [2, 3]]), 2),
        (lambda: v1.placeholder_with_default(tf.zeros([7, 2]), None), 7),
    ],
    ids=["dense", "first_of_dict", "scalar_skipped", "no_labels", "sparse", "ragged", "any_shape"],
)
def test_rows_are_counted_on_the_first_axis_there_is(make, rows):
    with fresh_graph(), v1.Session() as session:
        count = count_rows(make())
        assert count.dtype == tf.int64
        assert session.run(count) == rows


@pytest.mark.parametrize("structure", [None, (None, None), {}])
def test_there_may_be_no_axis_to_count(structure):
    with fresh_graph():
        assert count_rows(structure) is None
        assert count_rows((tf.constant(1.0), structure)) is None
