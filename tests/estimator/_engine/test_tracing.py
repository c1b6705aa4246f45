import contextlib
import gc
import multiprocessing
import os
import threading
import types
import weakref
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.freed_blocks import blocks_freed_but_held, needs_glibc
from tfx_tpu_trainer.estimator._engine.tf_private import tables_updated_in_one_op
from tfx_tpu_trainer.estimator._engine.tracing import control_flow_v2, fresh_graph

v1 = tf.compat.v1


@contextlib.contextmanager
def _switched_off(switch: str):
    """Runs as a program that called `tf.compat.v1.disable_<switch>()`."""
    getattr(v1, f"disable_{switch}")()
    try:
        yield
    finally:
        getattr(v1, f"enable_{switch}")()


@pytest.mark.behaviour(156)
def test_the_global_step_is_there_first_as_a_resource_of_int64():
    with fresh_graph():
        (step,) = v1.global_variables()
        assert step is v1.train.get_global_step()
        assert step.dtype == tf.int64
        assert step.op.type == "VarHandleOp"
        assert step.op.name == "global_step"


@pytest.mark.behaviour(156)
def test_the_graph_seed_is_the_one_given():
    with fresh_graph(17) as graph:
        assert graph.seed == 17
    with fresh_graph() as graph:
        assert graph.seed is None


@pytest.fixture
def ops_of_the_collector():
    """Returns a switch that has the collector run wherever it can, and add an op, as it does when it finds a table."""
    before = gc.get_threshold()

    def add_op(phase: str, _info: dict[str, int]) -> None:
        if phase == "stop":
            tf.raw_ops.NoOp()

    def switch_on() -> None:
        gc.callbacks.append(add_op)
        gc.set_threshold(1)

    yield switch_on
    gc.set_threshold(*before)
    gc.callbacks.remove(add_op)


def test_a_table_that_the_collector_finds_while_an_op_is_added_adds_its_own(ops_of_the_collector):
    added: list[str] = []

    def trace() -> None:
        with fresh_graph() as graph:
            ops_of_the_collector()
            tf.raw_ops.Neg(x=1.0)
            added.extend(op.type for op in graph.get_operations())

    # A thread, as it would wait forever.
    thread = threading.Thread(target=trace, daemon=True)
    thread.start()
    thread.join(60)
    assert {"Neg", "NoOp"} <= set(added)


class _Cycle:
    """Garbage that only the collector finds."""

    def __init__(self):
        self.itself = self


def _make_ops(count: int) -> None:
    value = tf.constant(0.0)
    for _ in range(count):
        value = tf.raw_ops.Neg(x=value)


def _left_behind(ops: int) -> weakref.ref[tf.Graph]:
    with fresh_graph() as graph:
        _make_ops(ops)
    return weakref.ref(graph)


@pytest.fixture
def no_collector():
    """Only what collects by itself finds garbage."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(("ops", "is_there"), [(100, True), (5_000, False)])
def test_a_large_graph_that_is_garbage_is_collected_before_the_next_one(ops, is_there):
    former = _left_behind(ops)
    with fresh_graph():
        assert (former() is not None) == is_there


@pytest.mark.usefixtures("no_collector")
def test_a_large_graph_in_use_is_no_reason_to_collect():
    with fresh_graph():
        _make_ops(5_000)
        garbage = _Cycle()
        former = weakref.ref(garbage)
        del garbage
        with fresh_graph():
            assert former() is not None


@needs_glibc
@pytest.mark.usefixtures("no_collector")
def test_memory_that_was_freed_is_returned_before_a_graph_that_follows_a_large_one():
    _left_behind(5_000)
    with blocks_freed_but_held(megabytes=120) as resident_kib:
        held = resident_kib()
        with fresh_graph():
            assert held - resident_kib() > 100_000


def test_the_graph_is_the_default_one_inside_only():
    outside = v1.get_default_graph()
    with fresh_graph() as graph:
        assert v1.get_default_graph() is graph
    assert v1.get_default_graph() is outside


@pytest.mark.parametrize("switched_off", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: v1.get_variable("v", [2]),
        lambda: v1.get_variable("v", [2], use_resource=False),
        lambda: v1.Variable([1.0]),
        lambda: v1.Variable([1.0], use_resource=False),
        lambda: tf.Variable([1.0]),
        lambda: v1.metrics.mean([1.0]),
    ],
    ids=["get_variable", "get_variable_ref", "v1", "v1_ref", "v2", "metric"],
)
def test_every_variable_is_a_resource(make, switched_off):
    program = _switched_off("resource_variables") if switched_off else contextlib.nullcontext()
    with program, fresh_graph() as graph:
        make()
        found = {op.type for op in graph.get_operations() if "Var" in op.type}
    assert "VarHandleOp" in found
    assert not found & {"Variable", "VariableV2"}


@pytest.mark.parametrize("switched_off", [False, True])
def test_control_flow_is_v2_inside_and_as_the_program_chose_outside(switched_off):
    program = _switched_off("control_flow_v2") if switched_off else contextlib.nullcontext()
    with program:
        with fresh_graph() as graph:
            tf.cond(v1.placeholder(tf.bool), lambda: 1.0, lambda: 2.0)
            found = {op.type for op in graph.get_operations()}
        assert v1.control_flow_v2_enabled() is not switched_off
    assert found & {"If", "StatelessIf"}
    assert "Switch" not in found


def test_control_flow_is_restored_after_an_error():
    with _switched_off("control_flow_v2"):
        with pytest.raises(ZeroDivisionError), control_flow_v2():
            raise ZeroDivisionError
        assert not v1.control_flow_v2_enabled()


def test_device_fn_places_every_op():
    with fresh_graph(device_fn=lambda op: "/cpu:0"):
        assert tf.constant(1.0).device.lower().endswith("cpu:0")
        assert v1.train.get_global_step().op.device.lower().endswith("cpu:0")


def _layer_with_an_if(module: str) -> Any:
    """A layer whose `if` looks at a tensor, which AutoGraph alone can make a graph of.

    Args:
        module: Where its code claims to be.
    """
    tf_keras = pytest.importorskip("tf_keras")

    def call(self, inputs):
        if tf.reduce_sum(inputs) > 0:
            return inputs
        return -inputs

    names = {"tf": tf, "__name__": module}
    placed = types.FunctionType(call.__code__, names, "call")
    return type("Layer", (tf_keras.layers.Layer,), {"__module__": module, "call": placed})()


def test_layers_of_ones_own_are_converted():
    with fresh_graph():
        _layer_with_an_if("a_users_module")(v1.placeholder(tf.float32, [2]))


def test_layers_of_tf_keras_are_not_converted_as_those_of_keras_are_not():
    layer = _layer_with_an_if("tf_keras.src.layers")
    with fresh_graph(), pytest.raises(TypeError, match="as a Python `bool`"):
        layer(v1.placeholder(tf.float32, [2]))


def _trace(answers: Any) -> None:
    try:
        with fresh_graph():
            answers.send("it runs")
    except Exception as error:
        answers.send(f"{type(error).__name__}: {error}")


def _in_a_fork() -> str:
    context = multiprocessing.get_context("fork")
    answers, sends = context.Pipe(duplex=False)
    process = context.Process(target=_trace, args=[sends])
    process.start()
    process.join()
    return answers.recv()


def _answers_of_forks(before: Any) -> None:
    """Forks a fresh process after it has imported TensorFlow and traced a graph, and again after a session."""
    with fresh_graph():
        first = _in_a_fork()
    with tf.Graph().as_default(), v1.Session():
        pass
    before.send((first, _in_a_fork(), os.getpid()))


def test_a_fork_is_refused_once_its_parent_has_had_a_session() -> None:
    context = multiprocessing.get_context("spawn")
    answers, sends = context.Pipe(duplex=False)
    process = context.Process(target=_answers_of_forks, args=[sends])
    process.start()
    first, second, parent = answers.recv()
    process.join()
    assert first == "it runs"
    assert f"RuntimeError: TensorFlow can't be forked: it has run in process {parent}" in second


@row(
    "estimator",
    "an estimator that trains in a forked process, after a session in its parent",
    "RuntimeError: TensorFlow can't be forked: it has run in process ",
    'Start processes with multiprocessing.get_context("spawn"), or fork before a session is first '
    "opened.",
)
def test_in_a_fork_of_a_process_with_a_session_nothing_runs(refused) -> None:
    with tf.Graph().as_default(), v1.Session():
        pass
    refused.log(_in_a_fork())


# Rows that a batch has twice, that only some batches have, and that none has.
_LOOKED_UP = np.array([[0, 2, 2], [5, 0, 5], [2, 1, 0], [5, 5, 5]])


class _Slower(v1.train.AdamOptimizer):
    """Adam with its own way to add rows."""

    def _resource_scatter_add(self, x, i, v):
        return super()._resource_scatter_add(x, i, v / 2)


def _trained(optimizer, dtype=tf.float32):
    """Trains a table, and returns it with its moments, and the types of ops that did it."""
    start = np.linspace(-1, 1, 21).reshape(7, 3)
    table = v1.get_variable("table", initializer=tf.constant(start, dtype), use_resource=True)
    rows = v1.placeholder(tf.int64, [3])
    loss = tf.reduce_sum(tf.square(tf.gather(table, rows)) + tf.gather(table, rows))
    train = optimizer(0.1).minimize(loss)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for batch in _LOOKED_UP:
            session.run(train, {rows: batch})
        values = session.run([v for v in v1.global_variables() if v.name.startswith("table")])
    return values, {op.type for op in v1.get_default_graph().get_operations()}


def _in_own_ops(optimizer, dtype=tf.float32):
    with tf.Graph().as_default():
        return _trained(optimizer, dtype)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_the_numbers_are_those_of_adams_own_ops(dtype):
    expected, _ = _in_own_ops(v1.train.AdamOptimizer, dtype)
    with fresh_graph():
        found, types = _trained(v1.train.AdamOptimizer, dtype)
    assert "ResourceApplyAdam" in types
    assert not types & {"ResourceScatterAdd", "Unique"}
    assert len(found) == len(expected) == 3
    for value, own in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, own, rtol=1e-5, atol=1e-7)


def test_a_table_whose_number_of_rows_the_graph_does_not_know():
    start = np.zeros([7, 3], np.float32)
    with tf.Graph().as_default(), tables_updated_in_one_op():
        table = v1.get_variable(
            "table",
            initializer=v1.placeholder_with_default(start, None),
            validate_shape=False,
            use_resource=True,
        )
        gradient = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([6, 6]))
        train = v1.train.AdamOptimizer(0.1).apply_gradients([(gradient, table)])
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(train)
            moved = session.run(table)
    # The first step of Adam is as long as its rate.
    np.testing.assert_allclose(moved, [[0.0] * 3] * 6 + [[-0.1] * 3], atol=1e-6)


def test_a_subclass_with_updates_of_its_own_keeps_them():
    expected, own_types = _in_own_ops(_Slower)
    with fresh_graph():
        found, types = _trained(_Slower)
    assert "ResourceScatterAdd" in types & own_types
    np.testing.assert_array_equal(found[0], expected[0])


def test_outside_of_the_engines_graphs_adam_is_as_it_was():
    own = vars(v1.train.AdamOptimizer).copy()
    with fresh_graph():
        with fresh_graph():
            pass
        assert vars(v1.train.AdamOptimizer) != own
    assert vars(v1.train.AdamOptimizer) == own


def test_a_method_that_a_program_has_given_adam_stays(monkeypatch):
    def own(self, grad, handle, indices):
        return tf.group(handle.assign(handle + 1))

    monkeypatch.setattr(
        v1.train.AdamOptimizer, "_resource_apply_sparse_duplicate_indices", own, raising=False
    )
    with fresh_graph():
        found, _ = _trained(v1.train.AdamOptimizer)
    assert v1.train.AdamOptimizer._resource_apply_sparse_duplicate_indices is own
    np.testing.assert_allclose(found[0][0], np.float32([3.0, 3.1, 3.2]))
