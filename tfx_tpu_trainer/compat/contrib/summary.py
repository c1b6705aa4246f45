"""The summaries of host_call functions: `tf.contrib.summary`, on those of TensorFlow 2."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

v1 = tf.compat.v1
# What tf.summary.create_file_writer puts the initializers of a graph's writers into.
_INITIALIZERS = "_SUMMARY_WRITER_V2"

__all__ = [
    "all_summary_ops",
    "always_record_summaries",
    "audio",
    "create_file_writer",
    "create_summary_file_writer",
    "flush",
    "generic",
    "graph",
    "histogram",
    "image",
    "initialize",
    "never_record_summaries",
    "record_summaries_every_n_global_steps",
    "scalar",
    "should_record_summaries",
    "summary_writer_initializer_op",
]


def create_file_writer(
    logdir: Any,
    max_queue: Any = None,
    flush_millis: Any = None,
    filename_suffix: Any = None,
    name: str | None = None,
) -> Any:
    """Makes a writer of summaries.

    Args:
        logdir: The folder.
        max_queue: How many summaries wait for each other. Defaults to `None`, 10.
        flush_millis: The time between writes, in milliseconds. Defaults to `None`, two minutes.
        filename_suffix: The end of the file's name. Defaults to `None`, `.v2`.
        name: The op's name. Defaults to `None`.

    Returns:
        The writer; `with writer.as_default()` summaries go to it.
    """
    return tf.summary.create_file_writer(logdir, max_queue, flush_millis, filename_suffix, name)


def create_summary_file_writer(*args: Any, **kwargs: Any) -> Any:
    """Makes a writer of summaries: an older name of `create_file_writer`.

    Args:
        *args: Its arguments.
        **kwargs: Its arguments.

    Returns:
        The writer.
    """
    return create_file_writer(*args, **kwargs)


def always_record_summaries() -> Any:
    """Returns a context in which summaries are written with every step."""
    return tf.summary.record_if(True)


def never_record_summaries() -> Any:
    """Returns a context in which no summaries are written."""
    return tf.summary.record_if(False)


def record_summaries_every_n_global_steps(n: Any, global_step: Any = None) -> Any:
    """Returns a context in which summaries are written with every n-th step.

    Args:
        n: How many steps are between.
        global_step: The step, a scalar; in a host_call the one that it gets. Defaults to `None`,
            the graph's.
    """
    step = v1.train.get_or_create_global_step() if global_step is None else global_step
    return tf.summary.record_if(tf.reshape(tf.equal(step % n, 0), []))


def should_record_summaries() -> Any:
    """Returns whether summaries are written here."""
    return tf.summary.should_record_summaries()


def all_summary_ops() -> list[Any]:
    """Returns the graph's summary ops: what a host_call returns."""
    return v1.summary.all_v2_summary_ops()


def summary_writer_initializer_op() -> list[Any]:
    """Returns the ops that open the graph's writers; a host_call needs none."""
    return v1.get_collection(_INITIALIZERS)


def initialize(graph: Any = None, session: Any = None) -> None:
    """Opens the graph's writers in a session; a host_call's are opened for it.

    Args:
        graph: A graph to write. Defaults to `None`.
        session: The session. Defaults to `None`, the default one.
    """
    v1.summary.initialize(graph=graph, session=session)


def flush(writer: Any = None, name: str | None = None) -> Any:
    """Writes what waits.

    Args:
        writer: The writer. Defaults to `None`, the default one.
        name: The op's name. Defaults to `None`.

    Returns:
        The op.
    """
    return tf.summary.flush(writer, name)


def scalar(name: str, tensor: Any, family: str | None = None, step: Any = None) -> Any:
    """Writes a number.

    Args:
        name: Its name.
        tensor: A scalar.
        family: Prefix of the name. Defaults to `None`.
        step: The step. Defaults to `None`, the graph's.

    Returns:
        The op.
    """
    return tf.summary.scalar(_named(name, family), tensor, step=_step(step))


def histogram(name: str, tensor: Any, family: str | None = None, step: Any = None) -> Any:
    """Writes a histogram.

    Args:
        name: Its name.
        tensor: The values.
        family: Prefix of the name. Defaults to `None`.
        step: The step. Defaults to `None`, the graph's.

    Returns:
        The op.
    """
    return tf.summary.histogram(_named(name, family), tensor, step=_step(step))


def image(
    name: str,
    tensor: Any,
    bad_color: Any = None,
    max_images: int = 3,
    family: str | None = None,
    step: Any = None,
) -> Any:
    """Writes images.

    Args:
        name: Their name.
        tensor: `[batch, height, width, channels]`: bytes, or floats from 0 to 1.
        bad_color: Not used.
        max_images: How many of a batch. Defaults to 3.
        family: Prefix of the name. Defaults to `None`.
        step: The step. Defaults to `None`, the graph's.

    Returns:
        The op.
    """
    del bad_color
    return tf.summary.image(_named(name, family), tensor, step=_step(step), max_outputs=max_images)


def audio(
    name: str,
    tensor: Any,
    sample_rate: Any,
    max_outputs: int,
    family: str | None = None,
    step: Any = None,
) -> Any:
    """Writes sounds.

    Args:
        name: Their name.
        tensor: `[batch, frames, channels]` or `[batch, frames]`, floats from -1 to 1.
        sample_rate: In hertz.
        max_outputs: How many of a batch.
        family: Prefix of the name. Defaults to `None`.
        step: The step. Defaults to `None`, the graph's.

    Returns:
        The op.
    """
    if tensor.shape.rank == 2:
        tensor = tf.expand_dims(tensor, -1)
    return tf.summary.audio(
        _named(name, family), tensor, sample_rate, step=_step(step), max_outputs=max_outputs
    )


def generic(
    name: str, tensor: Any, metadata: Any = None, family: str | None = None, step: Any = None
) -> Any:
    """Writes a tensor.

    Args:
        name: Its name.
        tensor: The tensor.
        metadata: What a plugin of TensorBoard reads. Defaults to `None`.
        family: Prefix of the name. Defaults to `None`.
        step: The step. Defaults to `None`, the graph's.

    Returns:
        The op.
    """
    return tf.summary.write(_named(name, family), tensor, step=_step(step), metadata=metadata)


def graph(param: Any, step: Any = None, name: str | None = None) -> tf.Operation:
    """Writes nothing: estimators write their graph themselves.

    Args:
        param: Not used.
        step: Not used.
        name: The op's name. Defaults to `None`.

    Returns:
        An op that does nothing.
    """
    del param, step
    return tf.no_op(name)


def _named(name: str, family: str | None) -> str:
    return name if family is None else f"{family}/{name}"


def _step(step: Any) -> Any:
    return v1.train.get_or_create_global_step() if step is None else step
