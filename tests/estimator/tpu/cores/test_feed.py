from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.graph_copy import GraphCopier
from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import as_input_tensors
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.tpu.cores.feed import CoreFeed
from tfx_tpu_trainer.estimator.tpu.cores.layout import CoreLayout, InputMode, row_slices

v1 = tf.compat.v1

X = np.arange(24, dtype=np.float32).reshape(8, 3)
Y = np.arange(8)


def _source(batch: int, *, drop: bool = True, shift: int = 0):
    dataset = tf.data.Dataset.from_tensor_slices(({"x": X + shift}, Y + shift))
    return as_input_tensors(dataset.batch(batch, drop_remainder=drop))


def _read(mode: InputMode, cores: int, sources, *, axes=None):
    """What each core reads in one step, in the order of the flattened placeholders."""
    feed = CoreFeed(sources, row_slices(mode, CoreLayout(cores)), batch_axes=axes)
    copier = GraphCopier(v1.get_default_graph())
    read = tf.function(lambda: feed.read(copier), autograph=False)()
    with v1.train.MonitoredSession(hooks=[h for s in sources for h in s.hooks]) as session:
        rows = session.run(read)
    return [[core[placeholder.name] for placeholder in feed.placeholders] for core in rows]


@pytest.mark.parametrize(
    ("mode", "batch", "rows"),
    [
        (InputMode.PER_HOST_V1, 8, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (InputMode.PER_HOST_V2, 4, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (InputMode.SLICED, 8, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (InputMode.BROADCAST, 4, [[0, 1, 2, 3], [0, 1, 2, 3]]),
    ],
)
@pytest.mark.behaviour(128, 129, 130, 77)
def test_rows_of_two_cores(mode, batch, rows):
    with fresh_graph():
        read = _read(mode, 2, [_source(batch)])
    for (x, y), expected in zip(read, rows):
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(x, X[expected])


@pytest.mark.behaviour(131)
def test_each_call_feeds_its_core():
    with fresh_graph():
        read = _read(InputMode.PER_SHARD_V1, 2, [_source(2), _source(2, shift=100)])
    assert [list(y) for _, y in read] == [[0, 1], [100, 101]]


def test_each_core_has_the_numbers_as_they_are():
    with fresh_graph() as graph:
        given = ({"k": 3, "x": X, "none": None}, {"rate": np.float32(0.5), "y": Y})
        source = as_input_tensors(given).with_tensors()
        feed = CoreFeed(
            [source],
            row_slices(InputMode.PER_HOST_V1, CoreLayout(2)),
            batch_axes=[None, 0, None, 0],
        )
        assert [p.shape.as_list() for p in feed.placeholders] == [[4, 3], [4]]
        assert feed.features["none"] is None
        with v1.Session(graph=graph) as session:
            assert session.run([feed.features["k"], feed.labels["rate"]]) == [3, 0.5]


def test_numbers_that_differ_between_calls_are_refused():
    with fresh_graph():
        sources = [as_input_tensors({"k": k, "x": X}).with_tensors() for k in (3, 4)]
        with pytest.raises(ValueError, match="the same in every call; got 3 and 4"):
            CoreFeed(sources, row_slices(InputMode.PER_SHARD_V1, CoreLayout(2)), batch_axes=None)


@pytest.mark.behaviour(132)
def test_an_axis_for_each_tensor():
    with fresh_graph():
        source = as_input_tensors(tf.data.Dataset.from_tensors(({"a": X.T, "b": X}, Y)).repeat())
        read = _read(InputMode.PER_HOST_V1, 4, [source], axes=[1, None, 0])
    for core, (a, b, y) in enumerate(read):
        rows = slice(2 * core, 2 * core + 2)
        np.testing.assert_array_equal(a, X[rows].T)
        np.testing.assert_array_equal(b, X[rows])
        np.testing.assert_array_equal(y, Y[rows])


def _feed(source, **options):
    slices = row_slices(InputMode.PER_HOST_V1, CoreLayout(2))
    return CoreFeed([source], slices, **{"batch_axes": None, **options})


def test_the_structure_of_the_input_is_kept():
    with fresh_graph():
        feed = _feed(_source(4))
        assert feed.features["x"].shape == [2, 3]
        assert feed.labels.shape == [2]
        only = as_input_tensors(
            tf.data.Dataset.from_tensor_slices((X,)).map(lambda x: x).batch(4, True)
        )
        assert _feed(only).labels is None


def test_the_batch_is_open_to_the_model_only_where_short_ones_may_come():
    with fresh_graph():
        assert _feed(_source(4, drop=False), batch_size=4).features["x"].shape.as_list() == [
            None,
            3,
        ]
        padded = _feed(_source(4, drop=False), batch_size=4, padded=True)
        assert padded.features["x"].shape.as_list() == [2, 3]
        assert _feed(_source(2), batch_size=8, padded=True).features["x"].shape.as_list() == [4, 3]


@pytest.mark.parametrize(
    ("make", "options", "says"),
    [
        (
            lambda: _source(4, drop=False),
            {},
            "features to the model returned by input_fn must have static shape.*drop_rem",
        ),
        (lambda: _source(3), {}, r"features of shape \(3, 3\) can't be cut into 2 equal pieces"),
        (lambda: _source(4), {"batch_axes": [0]}, "batch_axis has 1 entries .* has 2 tensors"),
        (lambda: _source(4), {"batch_axes": [0, 1]}, "labels to TPU must have an axis 1 to split"),
        (
            lambda: as_input_tensors({"x": tf.sparse.from_dense(X)}),
            {},
            "SparseTensor inputs can't be passed to TPU cores.*dense in input_fn",
        ),
    ],
)
@pytest.mark.behaviour(132, 134, 136)
def test_inputs_that_do_not_hold(make, options, says):
    with fresh_graph(), pytest.raises(ValueError, match=says):
        _feed(make(), **options)


def test_sources_of_different_structure_are_refused():
    slices = row_slices(InputMode.PER_SHARD_V1, CoreLayout(2))
    with fresh_graph():
        other = tf.data.Dataset.from_tensor_slices(({"z": X}, Y)).batch(4, drop_remainder=True)
        sources = [_source(4), as_input_tensors(other)]
        with pytest.raises(ValueError, match=r"features\['x'\] is in only one of them"):
            CoreFeed(sources, slices, batch_axes=None)
