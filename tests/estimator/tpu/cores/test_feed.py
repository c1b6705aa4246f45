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
from tfx_tpu_trainer.estimator.tpu._tpu_context import with_padding, without_padding
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
        (lambda: _source(4), {"batch_axes": [0]}, "batch_axis has 1 entries .* has 2 tensors"),
        (lambda: _source(4), {"batch_axes": [0, 1]}, "labels to TPU must have an axis 1 to split"),
    ],
)
@pytest.mark.behaviour(132)
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


def test_the_key_is_there_for_who_looks_it_up_only():
    padding = tf.constant([False, True])
    features = with_padding({"x": 1}, padding)
    assert features["is_padding"] is padding
    assert list(features) == list(features.keys()) == ["x"]
    assert features == {"x": 1}
    assert "is_padding" not in features
    assert features.get("is_padding") is None
    with pytest.raises(KeyError, match="y"):
        _ = features["y"]
    assert tf.nest.map_structure(lambda value: value + 1, features) == {"x": 2}


def test_a_feature_of_that_name_is_the_users():
    assert with_padding({"is_padding": 5}, tf.constant([True]))["is_padding"] == 5


def test_what_is_no_dict_stays_as_it_is():
    for features in (tf.constant([1.0]), (1, 2), None):
        assert with_padding(features, tf.constant([True])) is features


def test_on_the_host_nothing_is_padding():
    features = without_padding({"x": tf.zeros([3, 2])})
    assert features["is_padding"].numpy().tolist() == [False] * 3
    with pytest.raises(KeyError, match="is_padding"):
        _ = without_padding({"x": tf.constant(1.0)})["is_padding"]


def test_nobody_asks_nothing_is_made():
    with tf.Graph().as_default() as graph:
        features = without_padding({"x": tf.zeros([3])})
        made = len(graph.get_operations())
        assert dict(features)["x"] is features["x"]
        assert len(graph.get_operations()) == made
        _ = features["is_padding"]
        assert len(graph.get_operations()) > made
