"""Batches that are cut out of arrays: the same elements as those put together row by row."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator._engine.feeding.elements import elements
from tfx_tpu_trainer.estimator._engine.feeding.dataset_edits import edited, ops_of
from tfx_tpu_trainer.estimator._engine.feeding.input_pipeline import as_input_tensors
from tfx_tpu_trainer.estimator._engine.feeding.saved_iterators import iterators_of_default_graph
from tfx_tpu_trainer.estimator._engine.feeding.sliced_batches import batches_to_cut_out

v1 = tf.compat.v1

ROWS = 7
ARRAYS = (
    {"numbers": np.arange(2.0 * ROWS).reshape(ROWS, 2), "words": np.array([*"abcdefg"])},
    np.arange(ROWS),
)


def rows():
    return tf.data.Dataset.from_tensor_slices(ARRAYS)


def cut_out(dataset):
    return edited(dataset, batches_to_cut_out(dataset))


def kinds(dataset):
    return {op.type for op in ops_of(dataset)}


BATCHES = {
    "a short one at the end": lambda: rows().batch(3),
    "no short one": lambda: rows().batch(3, drop_remainder=True),
    "all in one": lambda: rows().batch(ROWS),
    "more than there are": lambda: rows().batch(10),
    "none": lambda: rows().batch(10, drop_remainder=True),
    "single rows": lambda: rows().batch(1),
    "repeated after": lambda: rows().batch(3).repeat(2),
    "repeated before, one for each round": lambda: rows().repeat(3).batch(ROWS),
    "repeated twice before": lambda: rows().repeat(2).repeat(2).batch(1),
    "never": lambda: rows().repeat(0).batch(ROWS),
    "parallel": lambda: rows().batch(3, num_parallel_calls=2),
    "mapped after": lambda: rows().batch(2).map(lambda x, y: (x["numbers"] * 2, y)).prefetch(1),
    "zipped": lambda: tf.data.Dataset.zip((rows().batch(2), rows().batch(3))),
}


@pytest.mark.parametrize("case", BATCHES)
def test_the_batches_are_the_same(case):
    with tf.Graph().as_default():
        made = BATCHES[case]()
        other = cut_out(made)
        assert kinds(other).isdisjoint({"BatchDatasetV2", "ParallelBatchDataset"})
        assert other.element_spec == made.element_spec
        tf.nest.map_structure(np.testing.assert_array_equal, elements(other), elements(made))


AS_THEY_ARE = {
    "shuffled": lambda: rows().shuffle(3, seed=1).batch(3),
    "mapped before": lambda: rows().map(lambda x, y: y).batch(3),
    "across rounds": lambda: rows().repeat(2).batch(3),
    "batches of batches": lambda: tf.data.Dataset.range(6).batch(2),
    "sparse rows": lambda: tf.data.Dataset.from_tensor_slices(tf.sparse.eye(4)).batch(2),
    "ragged rows": lambda: tf.data.Dataset.from_tensor_slices(tf.ragged.range([1, 2])).batch(2),
    "rows of no known number": lambda: tf.data.Dataset.from_tensor_slices(
        v1.placeholder(tf.float32, [None, 2])
    ).batch(2),
    "a size of no known number": lambda: rows().batch(v1.placeholder(tf.int64, [])),
}


@pytest.mark.parametrize("case", AS_THEY_ARE)
def test_other_batches_stay(case):
    with tf.Graph().as_default():
        made = AS_THEY_ARE[case]()
        assert cut_out(made) is made


def test_options_stay():
    own = tf.data.Options()
    own.autotune.enabled = True
    with tf.Graph().as_default():
        made = cut_out(rows().batch(3).with_options(own))
        assert made.options().autotune.enabled is True
        assert "OptionsDataset" in kinds(made)


def test_an_input_draws_them():
    with tf.Graph().as_default():
        drawn = as_input_tensors(rows().batch(3))
        assert drawn.labels.shape.as_list() == [None]
        assert "BatchDatasetV2" not in {op.type for op in upstream_of_iterator()}
        with v1.train.MonitoredSession(hooks=drawn.hooks) as session:
            found = []
            while not session.should_stop():
                found.append(session.run(drawn.labels).tolist())
    assert found == [[0, 1, 2], [3, 4, 5], [6]]


def upstream_of_iterator():
    (made,) = (op for op in v1.get_default_graph().get_operations() if op.type == "MakeIterator")
    dataset = tf.data.experimental.from_variant(made.inputs[0], tf.TensorSpec(None))
    return ops_of(dataset)


def test_a_position_among_batches_of_another_size_is_another_input_s():
    described = []
    for size in (1, ROWS, 1):
        with tf.Graph().as_default():
            as_input_tensors(rows().repeat().batch(size))
            described.append(iterators_of_default_graph().description)
    assert described[0] == described[2] != described[1]
