"""Which loop a training runs, by its setting."""

from __future__ import annotations

import contextlib
import itertools
import threading

import pytest
import tensorflow as tf

from tests.estimator._engine.log_lines import log_lines
from tests.estimator._engine.templates import make_template
from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import as_input_tensors
from tfx_tpu_trainer.estimator._engine.loops.compiled_loop import build_compiled_loop
from tfx_tpu_trainer.estimator._engine.loops.step_loop import build_template_loop
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator._engine.training.training_loops import LoopChoice, jit_compile_of

v1 = tf.compat.v1

_STEPS = 40


def _template(products):
    """A model that sums what it reads, and so many products of matrices for XLA to compile."""
    inputs = as_input_tensors(
        tf.data.Dataset.range(1, _STEPS + 1).map(lambda n: tf.cast(n, tf.float32))
    )
    matrix = tf.fill([8, 8], inputs.features)
    for _ in range(products):
        matrix = tf.tanh(matrix @ matrix)
    total, step = v1.get_variable("total", initializer=0.0), v1.train.get_global_step()
    train_op = tf.group(total.assign_add(inputs.features), step.assign_add(1, read_value=False))
    loss = inputs.features + 0 * tf.reduce_sum(matrix)
    return make_template("train", loss=loss, train_op=train_op), total.read_value(), inputs


@contextlib.contextmanager
def _prepared(products, **options):
    """The loop that `"auto"` chooses of that model's two, prepared, its session and the sum."""
    with fresh_graph():
        template, total, inputs = _template(products)
        plain, compiled = build_template_loop(template), build_compiled_loop(template)
        loop = LoopChoice(plain, compiled, jit_compile="auto", **options)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            inputs.hooks[0].after_create_session(session, None)
            loop.prepare(session)
            yield loop, session, total


@pytest.mark.parametrize(("seconds", "compiles"), [(0.0, False), (600.0, True)])
def test_auto_gives_the_compiler_so_long_and_loses_no_step(seconds, compiles, caplog):
    options = {"clock": itertools.count().__next__, "compile_seconds": seconds}
    with log_lines(caplog), _prepared(100, **options) as (loop, session, total):
        loop.prepare(session)
        step = 0
        while step < _STEPS:
            _, step = loop.run(session, min(4, _STEPS - step))
        assert session.run(total) == sum(range(1, _STEPS + 1))
    lines = [r.getMessage() for r in caplog.records if "jit_compile" in r.getMessage()]
    assert len(lines) == 1
    given_up = "can't compile the steps: it has not done so within 0 s"
    assert (given_up in lines[0]) == (not compiles)
    for thread in threading.enumerate():
        if thread.name.startswith("compile_steps"):
            thread.join()


def test_auto_compares_calls_that_are_short_by_what_many_take(caplog):
    plain, compiled = [0.04, 0.04, 0.04], [0.045, 0.02, 0.02, 0.02]  # one call is disturbed
    seconds = [0.04, 0.04, *3 * [*plain, *compiled]]
    times = iter([time for call in seconds for time in (0.0, call)])
    with log_lines(caplog), _prepared(1, clock=lambda: next(times)) as (loop, session, total):
        for _ in range(_STEPS):
            loop.run(session, 1)
        assert session.run(total) == sum(range(1, _STEPS + 1))
    lines = [r.getMessage() for r in caplog.records if "jit_compile" in r.getMessage()]
    assert len(lines) == 1
    assert f" {1000 * sum(compiled) / 4:.3f} ms in the loop that XLA compiled" in lines[0]
    assert " 40.000 ms in the loop of single ops; continuing with the compiled loop." in lines[0]
    assert next(times, None) is None


@pytest.mark.parametrize("setting", [None, False, True, "auto"])
def test_only_auto_leaves_its_choice_to_the_graph_where_each_run_must_be_the_same(setting, caplog):
    with log_lines(caplog):
        assert jit_compile_of(setting, same_each_time=False) is setting
        assert not caplog.records
        found = jit_compile_of(setting, same_each_time=True)
        assert found is (None if setting == "auto" else setting)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == (setting == "auto")
    assert all("measures nothing" in line for line in lines)
