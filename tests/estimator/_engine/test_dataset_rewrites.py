"""Batches that are cut out of arrays: the same elements as those put together row by row.

Which maps run in parallel without tuning, and that nothing but the pace tells.

Where tf.data tunes a dataset: what is switched off, and what stays as the program has it.
"""

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.checkpointing.input_position import (
    iterators_of_default_graph,
)
from tfx_tpu_trainer.estimator._engine.feeding.dataset_rewrites import (
    MOST_UNTUNED,
    batches_to_cut_out,
    edited,
    has_autotune,
    ops_of,
    tuned_where_it_helps,
)
from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import as_input_tensors

v1 = tf.compat.v1

ROWS = 7
ARRAYS = (
    {"numbers": np.arange(2.0 * ROWS).reshape(ROWS, 2), "words": np.array([*"abcdefg"])},
    np.arange(ROWS),
)


def elements(dataset):
    """Returns a dataset's elements to its end."""
    following = v1.data.make_one_shot_iterator(dataset).get_next()
    found = []
    with v1.Session() as session:
        try:
            while True:
                found.append(session.run(following))
        except tf.errors.OutOfRangeError:
            return found


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


def op_types(dataset):
    """The types of the ops that make a dataset, the last one first."""
    pending, found = [tf.data.experimental.to_variant(dataset).op], {}
    while pending:
        op = pending.pop()
        found[op.name] = op.type
        pending += [tensor.op for tensor in op.inputs]
    return list(found.values())


def runs_in_parallel(dataset, **how):
    return "ParallelMapDatasetV2" in op_types(tuned_where_it_helps(dataset, **how))


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
        assert op_types(tuned).count("ParallelMapDatasetV2") == 3
        assert "MapDataset" not in op_types(tuned)
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
        assert "OptionsDataset" in op_types(tuned_where_it_helps(made))[2:]


def test_parallel_maps_and_maps_of_inner_datasets_stay():
    with tf.Graph().as_default():
        inner = numbers().flat_map(lambda x: tf.data.Dataset.from_tensors(x).map(one_more))
        for made in (numbers().map(one_more, num_parallel_calls=2), inner):
            before = op_types(made)
            assert op_types(tuned_where_it_helps(made))[-len(before) :] == before


def test_a_large_pool_is_left_to_tuning():
    with tf.Graph().as_default():
        made = numbers().map(one_more)
        assert tuned_where_it_helps(made, threads=MOST_UNTUNED + 1) is made


AUTO = tf.data.AUTOTUNE
MANY = MOST_UNTUNED + 1


FORMS = {
    "map": (True, lambda n: numbers().map(one_more, num_parallel_calls=n)),
    "batch": (True, lambda n: numbers().batch(2, num_parallel_calls=n)),
    "prefetch": (True, lambda n: numbers().prefetch(n)),
    "inner_map": (
        True,
        lambda n: numbers().flat_map(
            lambda x: tf.data.Dataset.from_tensors(x).map(one_more, num_parallel_calls=n)
        ),
    ),
    "repeat": (False, lambda n: numbers().repeat(n).take(6)),
    "take": (False, lambda n: numbers().take(n)),
}


def on(dataset):
    return dataset.options().autotune.enabled


@pytest.mark.parametrize("form", FORMS)
def test_autotune_is_found_wherever_it_stands(form):
    tunable, make = FORMS[form]
    for number, expected in ((AUTO, tunable), (2, False)):
        with tf.Graph().as_default() as graph:
            made = make(number)
            assert has_autotune(graph) is expected
            assert on(tuned_where_it_helps(made, threads=MANY)) is (None if expected else False)
            assert on(tuned_where_it_helps(made, threads=MOST_UNTUNED)) is False


@pytest.mark.parametrize("form", FORMS)
def test_the_elements_are_the_same(form):
    with tf.Graph().as_default():
        made = FORMS[form][1](AUTO)
        tuned, plain = (
            [element.tolist() for element in elements(dataset)]
            for dataset in (tuned_where_it_helps(made, threads=1), made)
        )
        assert tuned == plain != []


@pytest.mark.parametrize("enabled", [True, False])
def test_what_the_program_says_stays(enabled):
    options = tf.data.Options()
    options.autotune.enabled = enabled
    with tf.Graph().as_default():
        made = numbers().with_options(options)
        assert tuned_where_it_helps(made) is made


def test_rows_are_read_ahead_as_they_were():
    kept_out = tf.data.Options()
    kept_out.experimental_optimization.inject_prefetch = False
    with tf.Graph().as_default():
        for made, ahead in (
            (numbers(), 2),
            (numbers().prefetch(5), 5),
            (numbers().prefetch(5).with_options(tf.data.Options()), 5),
            (numbers().with_options(kept_out), None),
        ):
            assert read_ahead_of(tuned_where_it_helps(made, threads=1)) == ahead


def read_ahead_of(dataset):
    """The batches that the last stage of a dataset reads ahead; `None` where it reads none."""
    op = tf.data.experimental.to_variant(dataset).op
    while op.type == "OptionsDataset":
        op = op.inputs[0].op
    return tf.get_static_value(op.inputs[1]) if op.type.startswith("Prefetch") else None


def test_a_pool_of_its_own_counts_in_place_of_the_cores():
    for threads, expected in ((MANY, None), (1, False)):
        options = tf.data.Options()
        options.threading.private_threadpool_size = threads
        with tf.Graph().as_default():
            made = FORMS["map"][1](AUTO).with_options(options)
            assert on(tuned_where_it_helps(made)) is expected


def test_eager_datasets_stay():
    made = numbers()
    assert tuned_where_it_helps(made) is made
