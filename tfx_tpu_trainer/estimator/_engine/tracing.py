"""Opens the graph into which a model_fn is traced."""

import contextlib
import gc
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.processes import return_freed_memory
from tfx_tpu_trainer.estimator._engine import tf_private

v1 = tf.compat.v1

# The number of ops from which a graph is worth a garbage collection, which takes 0.2 s.
_LARGE_GRAPH = 5_000
# The graph of the call that ended last, unless it has been collected.
_latest_graph: weakref.ref[tf.Graph] | None = None
# The process with a session from which this process was forked.
_forked_from: int | None = None


@contextlib.contextmanager
def fresh_graph(
    seed: int | None = None, *, device_fn: Callable[[tf.Operation], str] | None = None
) -> Iterator[tf.Graph]:
    """Opens a new graph for a model_fn, with a global step, and makes it the default one."""
    # Variables are resource variables and control flow is v2 even where the program has called
    # `tf.compat.v1.disable_v2_behavior()`: copies of a template can't share reference variables,
    # and v1 control flow can be neither copied nor lowered to XLA. The program's own choice is
    # restored at the end.
    # Only Python's garbage collector frees a graph, some hundred MiB for a large model. So the previous
    # call's graph is collected before there are two; a training that evaluates keeps its own.
    global _latest_graph
    _check_not_forked()
    _collect_latest_graph()
    graph = tf.Graph()
    tf_private.let_collected_tables_add_ops(graph)
    with contextlib.ExitStack() as stack:
        stack.enter_context(graph.as_default())
        stack.enter_context(control_flow_v2())
        stack.enter_context(tf_private.keras_code_unconverted())
        stack.enter_context(tf_private.tables_updated_in_one_op())
        stack.enter_context(v1.variable_creator_scope(_as_resource_variable))
        if device_fn is not None:
            stack.enter_context(graph.device(device_fn))
        v1.set_random_seed(seed)
        v1.train.create_global_step(graph)
        try:
            yield graph
        finally:
            _latest_graph = weakref.ref(graph)


@contextlib.contextmanager
def control_flow_v2() -> Iterator[None]:
    """Switches control flow v2 on in the block."""
    was_enabled = v1.control_flow_v2_enabled()
    v1.enable_control_flow_v2()
    try:
        yield
    finally:
        if not was_enabled:
            v1.disable_control_flow_v2()


def _note_fork() -> None:
    global _forked_from
    if tf_private.sessions_made():
        _forked_from = os.getppid()


os.register_at_fork(after_in_child=_note_fork)


def _check_not_forked() -> None:
    """Refuses to run in a fork, which lacks the threads of TensorFlow's sessions and would wait for them forever."""
    if _forked_from is not None:
        raise RuntimeError(
            f"TensorFlow can't be forked: it has run in process {_forked_from}, and would wait forever in this one "
            f"({os.getpid()}), which was forked from it. Start processes with "
            'multiprocessing.get_context("spawn"), or fork before a session is first opened.'
        )


def _collect_latest_graph() -> None:
    global _latest_graph
    latest = None if _latest_graph is None else _latest_graph()
    _latest_graph = None
    if latest is not None and len(latest.get_operations()) >= _LARGE_GRAPH:
        del latest
        gc.collect()
        return_freed_memory()


def _as_resource_variable(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
    kwargs["use_resource"] = True
    return next_creator(**kwargs)
