"""Which maps run in parallel without tuning, and that nothing but the pace tells."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.estimator._engine.feeding.elements import elements
from tfx_tpu_trainer.estimator._engine.feeding.autotuning import MOST_UNTUNED, tuned_where_it_helps

v1 = tf.compat.v1


def numbers():
    return tf.data.Dataset.range(6)


def one_more(number):
    return number + 1


def one_more_if_small(number):
    tf.debugging.assert_less(number, tf.constant(9, tf.int64))
    return number + 1


def drawn(number):
    return number + tf.random.uniform([], maxval=3, dtype=tf.int64)


def in_python(number):
    return tf.numpy_function(lambda value: value + 1, [number], tf.int64)


def by_table(number):
    keys = v1.lookup.KeyValueTensorInitializer([0, 1], [5, 6], tf.int64, tf.int64)
    return v1.lookup.StaticHashTable(keys, -1).lookup(number)


def options(**of_optimization):
    made = tf.data.Options()
    for name, value in of_optimization.items():
        setattr(made.experimental_optimization, name, value)
    return made


def ops_of(dataset):
    """The types of the ops that make a dataset, the last one first."""
    pending, found = [tf.data.experimental.to_variant(dataset).op], {}
    while pending:
        op = pending.pop()
        found[op.name] = op.type
        pending += [tensor.op for tensor in op.inputs]
    return list(found.values())


def runs_in_parallel(dataset, **how):
    return "ParallelMapDatasetV2" in ops_of(tuned_where_it_helps(dataset, **how))


MAPS = {
    "no_state": (one_more, True),
    "assertion": (one_more_if_small, True),
    "branches": (lambda x: tf.cond(x > 2, lambda: x, lambda: -x), True),
    "branch_with_assertion": (
        lambda x: tf.cond(x > 2, lambda: one_more_if_small(x), lambda: -x),
        True,
    ),
    "random": (drawn, False),
    "branch_with_random": (lambda x: tf.cond(x > 2, lambda: drawn(x), lambda: -x), False),
    "python": (in_python, False),
    "table": (by_table, False),
}


@pytest.mark.parametrize("kind", MAPS)
def test_maps_that_keep_no_state_run_in_parallel(kind):
    function, expected = MAPS[kind]
    with tf.Graph().as_default():
        assert runs_in_parallel(numbers().map(function)) is expected


@pytest.mark.parametrize("kind", MAPS)
def test_they_are_those_that_tensorflow_runs_in_parallel_while_it_tunes(kind):
    function, expected = MAPS[kind]
    with tf.Graph().as_default():
        looking = tf.raw_ops.AssertNextDataset(
            input_dataset=tf.data.experimental.to_variant(numbers()),
            transformations=["ParallelMap" if expected else "Map"],
            output_types=[tf.int64],
            output_shapes=[()],
        )
        watched = tf.data.experimental.from_variant(looking, tf.TensorSpec((), tf.int64))
        iterator = v1.data.make_initializable_iterator(watched.map(function))
        with v1.Session() as session:
            session.run(v1.tables_initializer())
            session.run(iterator.initializer)
            session.run(iterator.get_next())


def test_elements_and_their_order_stay():
    with tf.Graph().as_default():
        one = numbers().map(one_more)
        two = one, one.map(lambda x: {"a": x - 1, "b": [x - 1, x - 1]})
        made = tf.data.Dataset.zip(two).batch(2).map(lambda x, y: (x * 10, y)).repeat(2)
        spec = made.element_spec
        tuned = tuned_where_it_helps(made)
        assert ops_of(tuned).count("ParallelMapDatasetV2") == 3
        assert "MapDataset" not in ops_of(tuned)
        assert tuned.element_spec == spec
        found = elements(tuned)
    assert [first.tolist() for first, _ in found] == [[10, 20], [30, 40], [50, 60]] * 2
    assert [second["a"].tolist() for _, second in found] == [[0, 1], [2, 3], [4, 5]] * 2
    assert [second["b"].tolist()[0] for _, second in found] == [[0, 0], [2, 2], [4, 4]] * 2


def test_sparse_elements_and_tensors_from_outside_stay():
    with tf.Graph().as_default():
        factor = tf.constant(3, tf.int64) * 2
        made = numbers().map(lambda x: tf.sparse.from_dense([[0, x * factor]])).batch(3)
        (first, second) = elements(tuned_where_it_helps(made))
    assert first.values.tolist() == [6, 12]
    assert second.values.tolist() == [18, 24, 30]


def test_the_first_error_comes_where_it_did():
    with tf.Graph().as_default():
        made = numbers().map(lambda x: tf.debugging.check_numerics(1 / (x - 3), "three"))
        following = v1.data.make_one_shot_iterator(tuned_where_it_helps(made)).get_next()
        with v1.Session() as session:
            assert [session.run(following) for _ in range(3)] == [-1 / 3, -1 / 2, -1]
            with pytest.raises(tf.errors.InvalidArgumentError, match="three"):
                session.run(following)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, True),
        ({"map_parallelization": False}, False),
        ({"apply_default_optimizations": False}, False),
        ({"apply_default_optimizations": False, "map_parallelization": True}, True),
    ],
)
def test_what_the_program_says_of_it_holds(given, expected):
    with tf.Graph().as_default():
        made = numbers().map(one_more).with_options(options(**given))
        assert runs_in_parallel(made) is expected


def test_options_further_up_still_hold():
    own = options()
    own.threading.private_threadpool_size = 3
    with tf.Graph().as_default():
        made = numbers().with_options(own).map(one_more)
        assert "OptionsDataset" in ops_of(tuned_where_it_helps(made))[2:]


def test_parallel_maps_and_maps_of_inner_datasets_stay():
    with tf.Graph().as_default():
        inner = numbers().flat_map(lambda x: tf.data.Dataset.from_tensors(x).map(one_more))
        for made in (numbers().map(one_more, num_parallel_calls=2), inner):
            before = ops_of(made)
            assert ops_of(tuned_where_it_helps(made))[-len(before) :] == before


def test_a_large_pool_is_left_to_tuning():
    with tf.Graph().as_default():
        made = numbers().map(one_more)
        assert tuned_where_it_helps(made, threads=MOST_UNTUNED + 1) is made
