"""Implements `tf.contrib.summary`, for host_call functions, with TensorFlow 2's summaries."""

from typing import Any

import tensorflow as tf

v1 = tf.compat.v1
# The collection in which tf.summary.create_file_writer puts a writer's initializer.
_INITIALIZERS = "_SUMMARY_WRITER_V2"

__all__ = [
    "all_summary_ops",
    "always_record_summaries",
    "create_file_writer",
    "flush",
    "graph",
    "histogram",
    "initialize",
    "record_summaries_every_n_global_steps",
    "scalar",
    "summary_writer_initializer_op",
]


def create_file_writer(
    logdir: Any,
    max_queue: Any = None,
    flush_millis: Any = None,
    filename_suffix: Any = None,
    name: str | None = None,
) -> Any:
    """Makes a writer of summaries."""
    return tf.summary.create_file_writer(logdir, max_queue, flush_millis, filename_suffix, name)


def always_record_summaries() -> Any:
    """Returns a context in which every step writes summaries."""
    return tf.summary.record_if(True)


def record_summaries_every_n_global_steps(n: Any, global_step: Any = None) -> Any:
    """Returns a context in which every n-th step writes summaries."""
    step = v1.train.get_or_create_global_step() if global_step is None else global_step
    return tf.summary.record_if(tf.reshape(tf.equal(step % n, 0), []))


def all_summary_ops() -> list[Any]:
    """Returns the graph's summary ops, for a host_call to return."""
    return v1.summary.all_v2_summary_ops()


def summary_writer_initializer_op() -> list[Any]:
    """Returns the ops that open the graph's writers; a host_call needs none."""
    return v1.get_collection(_INITIALIZERS)


def initialize(graph: Any = None, session: Any = None) -> None:
    """Opens the graph's writers in a session; a host_call's are opened for it."""
    v1.summary.initialize(graph=graph, session=session)


def flush(writer: Any = None, name: str | None = None) -> Any:
    """Writes pending summaries."""
    return tf.summary.flush(writer, name)


def scalar(name: str, tensor: Any, family: str | None = None, step: Any = None) -> Any:
    """Writes a scalar."""
    return tf.summary.scalar(_named(name, family), tensor, step=_step(step))


def histogram(name: str, tensor: Any, family: str | None = None, step: Any = None) -> Any:
    """Writes a histogram."""
    return tf.summary.histogram(_named(name, family), tensor, step=_step(step))


def graph(param: Any, step: Any = None, name: str | None = None) -> tf.Operation:
    """Does nothing: estimators write their graph themselves."""
    del param, step
    return tf.no_op(name)


def _named(name: str, family: str | None) -> str:
    return name if family is None else f"{family}/{name}"


def _step(step: Any) -> Any:
    return v1.train.get_or_create_global_step() if step is None else step
