"""Ops that know their core or read other cores, against NumPy on the rows of all cores."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.framework import function

from tfx_tpu_trainer.estimator._engine.copying.graph_copy import Fetch, GraphCopier
from tfx_tpu_trainer.estimator._engine.sessions.lifecycle import placed_by_need
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

v1 = tf.compat.v1

CORES = 4
ALL = [[0, 1, 2, 3]]
PAIRS = [[2, 0], [1, 3]]
ROWS = [np.array([[8.0, 3, 5, 1], [2, 4, 6, 7]], np.float32) * (core + 1) for core in range(CORES)]

Model = Callable[[tf.Tensor], tf.Tensor]


def _pieces(core: int, group: list[int], axis: int, onto: int) -> np.ndarray:
    pieces = [np.split(ROWS[each], len(group), axis)[group.index(core)] for each in group]
    return np.concatenate(pieces, onto)


def _reduce(how: str, groups: Any = None) -> Model:
    return lambda x: gen_xla_ops.xla_all_reduce(x, groups or ALL, how, "CrossReplica")


def _replica_id() -> tf.Tensor:
    return gen_xla_ops.xla_replica_id()


def _numbered(x: tf.Tensor) -> tf.Tensor:
    return x + tf.cast(_replica_id(), tf.float32)


def _gathered(x: tf.Tensor) -> tf.Tensor:
    """The rows of all cores on each of them, as SimCLR's model has it."""
    shape = [CORES, *x.shape.as_list()]
    placed = tf.scatter_nd([[_replica_id()]], [x], shape)
    return tf.reshape(v1.tpu.cross_replica_sum(placed, ALL), [-1, *x.shape.as_list()[1:]])


def _permuted(x: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.CollectivePermute(input=x, source_target_pairs=[[0, 1], [1, 2], [2, 0]])


def _all_to_all(x: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.AllToAll(
        input=x, group_assignment=ALL, concat_dimension=0, split_dimension=1, split_count=4
    )


def _all_to_all_in_pairs(x: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.AllToAll(
        input=x, group_assignment=PAIRS, concat_dimension=1, split_dimension=0, split_count=2
    )


def _scattered(x: tf.Tensor) -> tf.Tensor:
    return gen_xla_ops.xla_reduce_scatter(x, ALL, 1, "Add")


def _pair(core: int) -> list[int]:
    return next(pair for pair in PAIRS if core in pair)


CASES: dict[str, tuple[Model, Callable[[int], np.ndarray]]] = {
    "the number of the core": (_numbered, lambda core: ROWS[core] + core),
    "the rows of all cores": (_gathered, lambda core: np.concatenate(ROWS)),
    "a sum": (_reduce("Add"), lambda core: sum(ROWS)),
    "a mean in pairs": (_reduce("Mean", PAIRS), lambda c: sum(ROWS[i] for i in _pair(c)) / 2),
    "a minimum": (_reduce("Min"), lambda core: np.min(ROWS, axis=0)),
    "a maximum in pairs": (_reduce("Max", PAIRS), lambda c: ROWS[max(_pair(c))]),
    "a product": (_reduce("Mul"), lambda core: np.prod(ROWS, axis=0)),
    "a sum's pieces": (_scattered, lambda core: sum(ROWS)[:, core : core + 1]),
    "another core's rows": (_permuted, lambda c: [ROWS[2], ROWS[0], ROWS[1], 0 * ROWS[3]][c]),
    "pieces of all": (_all_to_all, lambda core: _pieces(core, [0, 1, 2, 3], 1, 0)),
    "pieces of a pair": (_all_to_all_in_pairs, lambda core: _pieces(core, _pair(core), 0, 1)),
}


def _in_a_condition(model: Model, x: tf.Tensor) -> tf.Tensor:
    taken = v1.placeholder_with_default(True, [])
    return tf.cond(taken, lambda: model(x), lambda: 0 * model(x))


def _in_a_loop(model: Model, x: tf.Tensor) -> tf.Tensor:
    shape = model(x).shape
    start = [0, tf.zeros(shape)]
    return tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, model(x)), start)[1]


def _in_a_compiled_function(model: Model, x: tf.Tensor) -> tf.Tensor:
    return tf.function(model, autograph=False, jit_compile=True)(x)


def _nested(model: Model, x: tf.Tensor) -> tf.Tensor:
    return tf.function(lambda y: _in_a_condition(model, y), autograph=False)(x)


def _on_cores(model: Model) -> list[np.ndarray]:
    """Returns what a model makes of each core's rows."""
    with fresh_graph() as graph:
        x = v1.placeholder(tf.float32, ROWS[0].shape)
        y = model(x)
        copier = GraphCopier(graph)
        replaced = [{x.name: tf.constant(rows)} for rows in ROWS]
        fetches = [Fetch(core, y) for core in range(CORES)]
        copies = copier.copy(fetches, replaced=replaced, name="copies")
        with v1.Session(config=placed_by_need(None)) as session:
            return session.run(copies)


@pytest.mark.parametrize(
    "where", [None, _in_a_condition, _in_a_loop, _in_a_compiled_function, _nested]
)
def test_each_core_gets_what_its_own_and_the_others_rows_make(where):
    models = [model for model, _ in CASES.values()]
    if where is not None:
        models = [lambda x, model=model: where(model, x) for model in models]
    got = _on_cores(lambda x: tf.concat([tf.reshape(m(x), [-1]) for m in models], 0))
    for core in range(CORES):
        expected = [np.ravel(of_core(core)) for _, of_core in CASES.values()]
        np.testing.assert_allclose(got[core], np.concatenate(expected), rtol=1e-6)


def _in_a_function(model: Model, x: tf.Tensor) -> tf.Tensor:
    return tf.function(model, autograph=False)(x)


GRADIENTS: list[tuple[Model, Callable[[int], np.ndarray]]] = [
    # Each core's loss is half of the sum of squares: the gradient is the result, sent back.
    (_gathered, lambda core: CORES * ROWS[core]),
    (lambda x: v1.tpu.cross_replica_sum(x, ALL), lambda core: CORES * sum(ROWS)),
    (_permuted, lambda core: ROWS[core] * (core != 3)),
    (_all_to_all, lambda core: ROWS[core]),
]


@pytest.mark.parametrize(
    "where", [lambda model, x: model(x), _in_a_condition, _in_a_loop, _in_a_function, _nested]
)
def test_gradients_go_back_to_the_cores_that_the_values_came_from(where):
    def gradients(x: tf.Tensor) -> tf.Tensor:
        losses = [tf.nn.l2_loss(where(model, x)) for model, _ in GRADIENTS]
        return tf.stack([tf.gradients(loss, x)[0] for loss in losses])

    got = _on_cores(gradients)
    for core in range(CORES):
        np.testing.assert_allclose(got[core], [of_core(core) for _, of_core in GRADIENTS], 1e-6)


def _in_changing_groups(x: tf.Tensor) -> tf.Tensor:
    def body(i: tf.Tensor, y: tf.Tensor, groups: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return i + 1, v1.tpu.cross_replica_sum(y, groups), groups[:, ::-1]

    return tf.while_loop(lambda i, y, groups: i < 2, body, [0, x, tf.constant(ALL)])[1]


def _in_groups_of_outside(x: tf.Tensor) -> tf.Tensor:
    groups = tf.constant(PAIRS)
    total = tf.function(lambda y, groups: v1.tpu.cross_replica_sum(y, groups), autograph=False)
    body = lambda i, y, groups: (i + 1, total(y, groups), groups)  # noqa: E731
    twice = tf.while_loop(lambda i, y, groups: i < 2, body, [0, x, groups])[1]
    return twice + total(x, groups[::-1, ::-1])


def test_groups_are_followed_into_the_functions_that_they_are_given_to():
    got = _on_cores(_in_groups_of_outside)
    # A pair's sum, twice that, and once more from the call outside of the loop.
    expected = [3 * sum(ROWS[other] for other in _pair(core)) for core in range(CORES)]
    np.testing.assert_allclose(got, expected, 1e-6)


def _run_alone(model: Model) -> np.ndarray:
    """Returns what a copy on one core makes of its rows, as it evaluates a short last batch."""
    with fresh_graph() as graph:
        x = v1.placeholder(tf.float32, ROWS[0].shape)
        y = model(x)
        fed = [{x.name: tf.constant(ROWS[0])}]
        (copied,) = GraphCopier(graph).copy([Fetch(0, y)], replaced=fed, name="short", alone=True)
        with v1.Session(config=placed_by_need(None)) as session:
            return session.run(copied)


@pytest.mark.parametrize("where", [lambda model, x: model(x), _in_a_condition])
def test_alone_a_reduction_is_of_one_core_and_its_number_is_0(where):
    for model in (_numbered, _reduce("Add"), _reduce("Mean", PAIRS), _reduce("Max")):
        np.testing.assert_array_equal(_run_alone(lambda x, m=model: where(m, x)), ROWS[0])


@pytest.mark.parametrize("where", [lambda model, x: model(x), _in_a_condition])
@pytest.mark.parametrize("model", [_permuted, _all_to_all, _scattered])
def test_alone_what_needs_other_cores_says_so(model, where):
    with pytest.raises(tf.errors.InvalidArgumentError, match="needs values of other TPU cores"):
        _run_alone(lambda x: where(model, x))


def test_a_loop_of_xlas_runs_jointly():
    @function.Defun(tf.float32)
    def small(x):
        return tf.reduce_sum(x) < 500.0

    @function.Defun(tf.float32)
    def body(x):
        return v1.tpu.cross_replica_sum(x, ALL)

    got = _on_cores(lambda x: gen_xla_ops.xla_while([x], small, body)[0])
    # The sum of all cores is 360 in the first round, and four times that in the second.
    np.testing.assert_allclose(got, [4 * sum(ROWS)] * CORES)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda x: _reduce("Add", [[0, 1]])(x), "core 2 is in no group"),
        (
            lambda x: tf.raw_ops.CollectivePermute(input=x, source_target_pairs=[[0, 1], [0, 2]]),
            "twice as a source",
        ),
        (lambda x: v1.tpu.cross_replica_sum(x, v1.placeholder(tf.int32, [1, 4])), "not constant"),
        (_in_changing_groups, "not constant"),
        (lambda x: function.Defun(tf.float32, func_name="f")(_numbered)(x), "tf.function"),
    ],
)
def test_what_can_not_be_exchanged_says_why(model, message):
    with pytest.raises(ValueError, match=message):
        _on_cores(model)
