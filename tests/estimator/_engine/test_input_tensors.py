import collections

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator._engine.log_lines import log_lines
from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import (
    as_input_tensors,
    as_tensors,
    count_rows,
    is_number,
    named_leaves,
    split_features_and_labels,
    structure_difference,
)
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

v1 = tf.compat.v1

Pair = collections.namedtuple("Pair", ["left", "right"])


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
        (lambda: {"a": 3, "b": [[1.0], [2.0]]}, 2),
        (lambda: (np.float32(1.0), np.zeros([5, 2])), 5),
        (lambda: {"x": (1, 2, 3)}, 3),
        (lambda: [tf.constant(1.0), tf.constant(2.0)], 2),
        (lambda: [np.zeros([4, 2]), np.zeros([4, 1])], 4),
    ],
    ids=[
        "dense",
        "first_of_dict",
        "scalar_skipped",
        "no_labels",
        "sparse",
        "ragged",
        "any_shape",
        "list",
        "array",
        "tuple",
        "list_of_scalars",
        "list_of_arrays",
    ],
)
def test_rows_are_counted_on_the_first_axis_there_is(make, rows):
    with fresh_graph(), v1.Session() as session:
        count = count_rows(make())
        assert count.dtype == tf.int64
        assert session.run(count) == rows


@pytest.mark.parametrize("structure", [None, (None, None), {}, 3, "word", np.float32(1.0)])
def test_there_may_be_no_axis_to_count(structure):
    with fresh_graph():
        assert count_rows(structure) is None
        assert count_rows(tf.constant(1.0), structure) is None


@pytest.mark.parametrize(
    ("given", "shapes"),
    [
        (3, []),
        ("word", []),
        (np.float64(1.0), []),
        ([[1, 2], [3, 4], [5, 6]], [3, 2]),
        (((1, 2), (3, 4)), [2, 2]),
        (np.zeros([2, 3]), [2, 3]),
        ({"x": [1.0], "y": {"z": np.zeros(2)}}, {"x": [1], "y": {"z": [2]}}),
        ((np.zeros(2), [1, 2, 3]), ([2], [3])),
        (Pair(1, [2, 3]), Pair([], [2])),
        ([np.zeros([4, 2]), np.zeros([4])], [[4, 2], [4]]),
        ([1.0, np.float32(2.0)], [2]),
        ({"x": [1], "none": None}, {"x": [1], "none": None}),
    ],
)
@pytest.mark.behaviour(116)
def test_each_value_becomes_a_tensor(given, shapes):
    with fresh_graph():
        made = as_tensors(given)
    assert type(made) is type(shapes) or isinstance(made, tf.Tensor)
    assert _shapes(made) == shapes


def _shapes(made):
    if isinstance(made, tf.Tensor):
        return made.shape.as_list()
    if isinstance(made, dict):
        return {key: _shapes(part) for key, part in made.items()}
    if isinstance(made, Pair):
        return Pair(*map(_shapes, made))
    return None if made is None else type(made)(map(_shapes, made))


@pytest.mark.behaviour(116)
def test_scalars_in_a_list_are_one_tensor_and_rows_are_not():
    with fresh_graph():
        packed = as_tensors([tf.constant(1.0), 2.0])
        rows = [tf.zeros([2]), tf.zeros([2])]
        assert packed.shape == [2]
        assert as_tensors(rows) is rows
        pair = (tf.constant(1.0), tf.constant(2.0))
        assert as_tensors(pair) is pair


@pytest.mark.behaviour(116)
def test_tensors_stay_and_variables_are_read():
    with fresh_graph():
        sparse = tf.sparse.from_dense([[1.0, 0.0]])
        variable = v1.get_variable("x", initializer=[1.0, 2.0])
        made = as_tensors({"sparse": sparse, "variable": variable})
        assert made["sparse"] is sparse
        assert isinstance(made["variable"], tf.Tensor)


def test_a_number_is_a_scalar_that_is_the_same_in_every_batch():
    with fresh_graph():
        drawn = v1.data.make_one_shot_iterator(tf.data.Dataset.range(3)).get_next()
        assert is_number(tf.constant(3))
        assert not any(map(is_number, [tf.constant([3]), drawn, None]))


def test_names_are_written_as_the_user_would_in_the_order_of_a_datasets_components():
    features = {"b": 1, "a": Pair(2, {"deep": 3}), "c": [4, None]}
    named = named_leaves(features, (5, 6))
    assert named == {
        "features['a'].left": 2,
        "features['a'].right['deep']": 3,
        "features['b']": 1,
        "features['c'][0]": 4,
        "labels[0]": 5,
        "labels[1]": 6,
    }
    assert list(named.values()) == [leaf for leaf in tf.nest.flatten((features, (5, 6))) if leaf]


def test_a_lone_tensor_and_no_labels():
    assert named_leaves("x", None) == {"features": "x"}


def test_the_first_tensor_that_differs_is_named():
    x, wide = tf.TensorSpec([4, 3]), tf.TensorSpec([4, 5])
    assert structure_difference(({"x": x}, x), ({"x": tf.TensorSpec([None, 3])}, x)) is None
    assert structure_difference(({"x": x}, x), ({"x": wide}, wide)) == (
        "features['x'] is float32 (4, 3) in one and float32 (4, 5) in another"
    )
    assert structure_difference(({"x": x}, x), ({"x": x}, tf.TensorSpec([4, 3], tf.int32))) == (
        "labels is float32 (4, 3) in one and int32 (4, 3) in another"
    )
    assert structure_difference(({"x": x}, None), ({"x": x, "y": x}, None)) == (
        "features['y'] is in only one of them"
    )
    assert structure_difference(({"x": x}, x), ({"x": x}, None)) == (
        "labels is in only one of them"
    )


Point = collections.namedtuple("Point", ["x", "y"])


def _rows_of_a_session(tensors, hooks, scaffold=None) -> list:
    """What one session reads until the input ends."""
    rows = []
    creator = v1.train.ChiefSessionCreator(scaffold=scaffold)
    with v1.train.MonitoredSession(session_creator=creator, hooks=hooks) as session:
        while not session.should_stop():
            rows.append(session.run(tensors))
    return rows


@pytest.mark.parametrize(
    ("element", "features", "labels"),
    [
        ("x", "x", None),
        ({"x": 1}, {"x": 1}, None),
        (({"x": 1}, "y"), {"x": 1}, "y"),
        ([{"x": 1}, "y"], {"x": 1}, "y"),
        (({"x": 1}, None), {"x": 1}, None),
        (({"x": {"deep": 1}}, {"y": 2}), {"x": {"deep": 1}}, {"y": 2}),
        (Point(1, 2), 1, 2),
        (None, None, None),
        ((None, "y"), None, "y"),
        ((Point(1, 2), "y"), Point(1, 2), "y"),
    ],
)
@pytest.mark.behaviour(116, 124)
def test_features_and_labels(element, features, labels):
    assert split_features_and_labels(element) == (features, labels)


@pytest.mark.parametrize("element", [(), ("x",), ("x", "y", "z"), ["x", "y", "z"]])
@pytest.mark.behaviour(117)
def test_a_tuple_or_list_of_another_length_is_refused(element):
    with pytest.raises(ValueError, match=f"len 2 tuple; got {len(element)} elements"):
        split_features_and_labels(element)


@pytest.mark.behaviour(116)
def test_a_dataset_is_read_to_its_end():
    with fresh_graph():
        dataset = tf.data.Dataset.from_tensor_slices(([1, 2, 3], [10, 20, 30]))
        inputs = as_input_tensors(dataset)
        rows = _rows_of_a_session([inputs.features, inputs.labels], inputs.hooks)
    np.testing.assert_array_equal(rows, [[1, 10], [2, 20], [3, 30]])


@pytest.mark.behaviour(143)
def test_every_session_starts_the_dataset_anew():
    with fresh_graph():
        inputs = as_input_tensors(tf.data.Dataset.range(3))
        first = _rows_of_a_session(inputs.features, inputs.hooks)
        again = _rows_of_a_session(inputs.features, inputs.hooks)
    assert first == again == [0, 1, 2]


def test_a_users_local_init_op_leaves_the_dataset_alone():
    with fresh_graph():
        inputs = as_input_tensors(tf.data.Dataset.range(2))
        scaffold = v1.train.Scaffold(local_init_op=tf.no_op())
        assert _rows_of_a_session(inputs.features, inputs.hooks, scaffold) == [0, 1]


@pytest.mark.behaviour(116)
def test_tensors_are_taken_as_they_are():
    with fresh_graph():
        features, labels = {"x": tf.constant([1.0])}, tf.constant([2.0])
        inputs = as_input_tensors((features, labels))
        assert inputs.features is features
        assert inputs.labels is labels
        assert inputs.hooks == ()


@pytest.mark.behaviour(137)
def test_sparse_ragged_and_short_batches_are_taken():
    with fresh_graph():
        rows = {
            "dense": tf.constant([1.0, 2.0, 3.0]),
            "sparse": tf.sparse.from_dense([[0, 5], [6, 0], [0, 0]]),
            "ragged": tf.ragged.constant([[1], [2, 3], []]),
        }
        inputs = as_input_tensors(tf.data.Dataset.from_tensor_slices(rows).batch(2))
        assert inputs.features["dense"].shape.as_list() == [None]
        batches = _rows_of_a_session(inputs.features, inputs.hooks)
    assert [batch["dense"].tolist() for batch in batches] == [[1, 2], [3]]
    assert [batch["sparse"].values.tolist() for batch in batches] == [[5, 6], []]
    assert [batch["ragged"].to_list() for batch in batches] == [[[1], [2, 3]], [[]]]


@pytest.mark.parametrize(
    ("element", "said"),
    [(None, "input_fn returned None: "), ((None, 1), "input_fn returned no features (None): ")],
)
def test_what_has_no_features_is_told_of(caplog, element, said):
    with log_lines(caplog) as logged:
        split_features_and_labels(element)
    assert any(line.startswith(said) for line in logged)
