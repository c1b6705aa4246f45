from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.graph_copy import GraphCopier
from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import (
    as_input_tensors,
    hide,
    hide_open_batches,
)
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.tpu.cores.layout import CoreLayout, InputMode, row_slices
from tfx_tpu_trainer.estimator.tpu.cores.short_batches import FiniteFeed

v1 = tf.compat.v1


def _steps(read, *, rows: int, batch: int, cores: int = 2, mode=InputMode.PER_HOST_V1, **options):
    """Runs `read(feed, drawn)` over all steps of an input of the numbers 0, 1, ..."""
    values = np.arange(1, rows + 1, dtype=np.float32)[:, None]
    steps = []
    with fresh_graph():
        dataset = tf.data.Dataset.from_tensor_slices(values)
        source = as_input_tensors(dataset.batch(batch, **options.pop("batching", {})))
        slices = row_slices(mode, CoreLayout(cores, one_host=True))
        feed = FiniteFeed([source], slices, batch_axes=None, batch_size=batch, **options)

        def step():
            drawn = feed.draw(GraphCopier(v1.get_default_graph()))
            return {"ended": drawn.ended, "rows": drawn.total_rows, "read": read(feed, drawn)}

        fetches = tf.function(step, autograph=False)()
        with v1.train.MonitoredSession(hooks=source.hooks) as session:
            while True:
                result = session.run(fetches)
                steps.append((int(result["rows"]), result["read"]))
                if result["ended"]:
                    return feed, steps


def _only(feed, fed):
    return fed[feed.placeholders[0].name]


def test_batches_come_to_their_end_and_tell_their_rows():
    _, steps = _steps(lambda feed, drawn: feed.is_full(drawn), rows=5, batch=2)
    assert steps == [(2, True), (2, True), (1, False), (0, False)]


def test_per_host_v2_draws_one_batch_for_each_core():
    _, steps = _steps(
        lambda feed, drawn: _only(feed, feed.whole(drawn)),
        rows=11,
        batch=2,
        cores=4,
        mode=InputMode.PER_HOST_V2,
    )
    assert [rows for rows, _ in steps] == [8, 3]
    assert [list(values[:, 0]) for _, values in steps] == [[1, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11]]


@pytest.mark.behaviour(222)
def test_short_batches_are_padded_with_zeros():
    def read(feed, drawn):
        fed, masks = feed.cut_padded(drawn)
        return [_only(feed, core)[:, 0] for core in fed], masks

    _, steps = _steps(read, rows=5, batch=4, padded=True)
    (_, (first, no_padding)), (_, (second, padding)), _ = steps
    np.testing.assert_array_equal(first, [[1, 2], [3, 4]])
    np.testing.assert_array_equal(second, [[5, 0], [0, 0]])
    assert not np.any(no_padding)
    np.testing.assert_array_equal(padding, [[False, True], [True, True]])


@pytest.mark.behaviour(142)
def test_a_batch_larger_than_a_full_one_cannot_be_padded():
    with fresh_graph():
        source = as_input_tensors(tf.data.Dataset.from_tensor_slices(np.zeros([6, 1])).batch(6))
        slices = row_slices(InputMode.PER_HOST_V1, CoreLayout(2))
        feed = FiniteFeed([source], slices, batch_axes=None, batch_size=4, padded=True)
        fed = feed.cut_padded(feed.draw(GraphCopier(v1.get_default_graph())))[0]
        says = "should not be greater than the padded batch size 4"
        with (
            v1.train.MonitoredSession(hooks=source.hooks) as session,
            pytest.raises(tf.errors.InvalidArgumentError, match=says),
        ):
            session.run(fed)


def test_full_batches_are_cut_with_static_shapes():
    def read(feed, drawn):
        def full():
            cut = [_only(feed, core) for core in feed.cut_full(drawn)]
            assert [tensor.shape.as_list() for tensor in cut] == [[2, 1], [2, 1]]
            return tf.concat(cut, axis=0)[:, 0]

        return tf.cond(feed.is_full(drawn), full, lambda: tf.zeros([0]))

    feed, steps = _steps(read, rows=6, batch=4)
    assert not feed.always_full
    assert list(steps[0][1]) == [1, 2, 3, 4]


def test_values_and_the_shapes_that_python_sees_stay():
    with fresh_graph():
        x = v1.placeholder(tf.float32, [None, 2])
        word = v1.placeholder_with_default(tf.constant([7], tf.int64), [None])
        hidden = hide_open_batches(({"x": x, "word": word}, x))
        assert hidden[0]["x"].shape.as_list() == [None, 2]
        assert hidden[0]["word"].dtype == tf.int64
        with v1.Session() as session:
            value = session.run(hidden[0]["x"], {x: [[1, 2], [3, 4]]})
    np.testing.assert_array_equal(value, [[1, 2], [3, 4]])


def test_what_is_known_sparse_ragged_or_absent_is_left_alone():
    with fresh_graph():
        structure = {
            "known": tf.zeros([2, 3]),
            "sparse": v1.sparse_placeholder(tf.float32, [None, 3]),
            "ragged": v1.ragged.placeholder(tf.float32, 1),
            "absent": None,
        }
        assert hide_open_batches(structure) is structure


@pytest.mark.parametrize("hidden", [True, False])
def test_a_reshape_in_a_loop_is_believed_by_the_optimizer_unless_it_is_hidden(hidden):
    """Should TensorFlow stop to believe it, the module can go."""

    def batch_sum(x):
        if hidden:
            (x,) = hide([x], [tf.TensorShape(None)])
        return tf.reduce_sum(tf.reshape(x, [4, 2]) + 1.0)

    with fresh_graph(), v1.Session() as session:
        dataset = tf.data.Dataset.from_tensor_slices(np.ones([6, 2], np.float32)).batch(4)
        iterator = v1.data.make_initializable_iterator(dataset)

        @tf.function(autograph=False)
        def both_batches():
            def body(number, total):
                return number + 1, total + batch_sum(iterator.get_next())

            return tf.while_loop(lambda number, total: number < 2, body, (0, 0.0))[1]

        total = both_batches()
        session.run(iterator.initializer)
        if hidden:
            with pytest.raises(tf.errors.InvalidArgumentError, match="Input to reshape"):
                session.run(total)
        else:
            assert session.run(total) == 24
