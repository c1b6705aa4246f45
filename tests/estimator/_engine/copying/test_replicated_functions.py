from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator._engine.templates import make_template
from tfx_tpu_trainer.estimator._engine.copying.graph_copy import Fetch, GraphCopier
from tfx_tpu_trainer.estimator._engine.sessions.lifecycle import placed_by_need
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.places.host import place_on_host

v1 = tf.compat.v1

CORES = 4
ROWS = [1.0, 2.0, 3.0, 4.0]
TOTAL = sum(ROWS)


def _sum(x: tf.Tensor, groups: Any = None) -> tf.Tensor:
    return v1.tpu.cross_replica_sum(x, groups or [list(range(CORES))])


def _in_condition(x: tf.Tensor) -> tf.Tensor:
    return tf.cond(v1.placeholder_with_default(True, []), lambda: _sum(x) + 1, lambda: x)


def _in_the_branch_not_taken(x: tf.Tensor) -> tf.Tensor:
    return tf.cond(v1.placeholder_with_default(False, []), lambda: _sum(x), lambda: x * 2)


def _in_a_loop(x: tf.Tensor) -> tf.Tensor:
    # Two steps: the second adds up four totals.
    return tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, _sum(y)), [0, x])[1]


def _nested(x: tf.Tensor) -> tf.Tensor:
    def body(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return i + 1, tf.cond(tf.equal(i, 0), lambda: _sum(y), lambda: y + x)

    return tf.while_loop(lambda i, y: i < 2, body, [0, x])[1]


def _in_a_function(x: tf.Tensor) -> tf.Tensor:
    return tf.function(lambda y: _sum(y) * y, autograph=False)(x)


def _in_a_case(x: tf.Tensor) -> tf.Tensor:
    branch = v1.placeholder_with_default(1, [])
    return tf.switch_case(branch, [lambda: x, lambda: _sum(x) - x, lambda: x * 0])


def _in_groups(x: tf.Tensor) -> tf.Tensor:
    pairs = [[0, 2], [1, 3]]
    return tf.cond(v1.placeholder_with_default(True, []), lambda: _sum(x, pairs), lambda: x)


CASES: list[tuple[Callable[[tf.Tensor], tf.Tensor], Callable[[float], float], list[float]]] = [
    # What is traced, what it gives on one core, what on each of the four.
    (_in_condition, lambda x: x + 1, [TOTAL + 1] * 4),
    (_in_the_branch_not_taken, lambda x: 2 * x, [2 * x for x in ROWS]),
    (_in_a_loop, lambda x: x, [CORES * TOTAL] * 4),
    (_nested, lambda x: 2 * x, [TOTAL + x for x in ROWS]),
    (_in_a_function, lambda x: x * x, [TOTAL * x for x in ROWS]),
    (_in_a_case, lambda x: 0.0, [TOTAL - x for x in ROWS]),
    (_in_groups, lambda x: x, [4.0, 6.0, 4.0, 6.0]),
]


def _run(fetches: Any) -> Any:
    with v1.Session(config=placed_by_need(None)) as session:
        session.run(v1.global_variables_initializer())
        return session.run(fetches)


def _copied(x: tf.Tensor, y: tf.Tensor, *, in_function: bool = False) -> list[tf.Tensor]:
    """Copies y onto all cores, each with its row for x."""
    copier = GraphCopier(v1.get_default_graph())

    def copy() -> list[tf.Tensor]:
        replaced = [{x.name: tf.constant(row)} for row in ROWS]
        fetches = [Fetch(core, y) for core in range(CORES)]
        return copier.copy(fetches, replaced=replaced, name="copies")

    return tf.function(copy, autograph=False)() if in_function else copy()


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize(("model", "alone", "together"), CASES)
def test_a_sum_in_a_function_is_over_the_calls_of_all_cores(model, alone, together, in_function):
    with fresh_graph():
        x = v1.placeholder(tf.float32, [])
        assert _run(_copied(x, model(x), in_function=in_function)) == together


@pytest.mark.parametrize(("model", "alone", "together"), CASES)
def test_on_the_host_it_runs_in_place(model, alone, together):
    with fresh_graph():
        y = model(v1.placeholder_with_default(3.0, []))
        template, _ = place_on_host(make_template("infer", predictions={"y": y + 0}))
        assert _run(template.predictions["y"]) == alone(3.0)


def test_on_the_host_who_only_waits_for_a_sum_waits_for_what_it_adds_up():
    with fresh_graph():
        counter = v1.get_variable("counter", initializer=0.0)
        total = _sum(counter.assign_add(1.0).read_value())
        with tf.control_dependencies([total]):
            y = tf.constant(7.0)
        template, _ = place_on_host(make_template("infer", predictions={"y": y}))
        with v1.Session(config=placed_by_need(None)) as session:
            session.run(v1.global_variables_initializer())
            assert session.run(template.predictions["y"]) == 7
            assert session.run(counter) == 1


def test_only_the_first_core_changes_variables():
    with fresh_graph():
        x = v1.placeholder(tf.float32, [])
        counter = v1.get_variable("counter", initializer=0.0)

        def apply() -> tf.Tensor:
            with tf.control_dependencies([counter.assign_add(_sum(x), read_value=False)]):
                return tf.constant(True)

        applied = tf.cond(v1.placeholder_with_default(True, []), apply, lambda: tf.constant(False))
        with tf.control_dependencies([applied]):
            y = x * 1
        copies = _copied(x, y)
        with v1.Session(config=placed_by_need(None)) as session:
            session.run(v1.global_variables_initializer())
            assert session.run(copies) == ROWS
            assert session.run(counter) == TOTAL


def test_random_ops_differ_between_cores_and_not_between_runs():
    with fresh_graph(seed=5):
        x = v1.placeholder(tf.float32, [])
        y = tf.cond(
            v1.placeholder_with_default(True, []),
            lambda: tf.random.uniform([]) + 0 * _sum(x),
            lambda: x,
        )
        copies = _copied(x, y)
        first, second = _run(copies), _run(copies)
    assert len(set(first)) == CORES
    np.testing.assert_array_equal(first, second)
