"""Writes summaries, runs the model's host_call, and closes event files."""

import contextlib
import itertools
import os
from collections.abc import Callable, Collection, Iterator
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private

v1 = tf.compat.v1
_logger = tf.get_logger()

# The name of a summary that the training itself writes.
_OF_LOSS = "loss"


def leave_out_summaries(*, kept: Collection[str] = (), told: bool = True) -> None:
    """Removes v1 summaries from those that a session writes, since their values are on the replicas."""
    summaries = v1.get_collection_ref(v1.GraphKeys.SUMMARIES)
    left_out = [each.op.name for each in summaries if each.name not in kept]
    summaries[:] = [each for each in summaries if each.name in kept]
    unwritten = [name for name in left_out if name != _OF_LOSS]
    if told and unwritten:
        _logger.warning(
            "Summaries of model_fn, and of heads and other functions that it calls, are not written on TPU cores or "
            "under a tf.distribute strategy: %s. To see them, write them in host_call.",
            unwritten,
        )


class SummaryHook(v1.train.SessionRunHook):
    """Writes the graph's summaries at the first step and every N global steps after it."""

    # TensorFlow's SummarySaverHook decides by the step of its last call, which lags behind when steps run ahead between
    # calls.

    def __init__(
        self,
        *,
        every_n_steps: int,
        output_dir: str,
        scaffold: v1.train.Scaffold,
        step_reached: Callable[[], int],
        step_after: tf.Tensor,
    ) -> None:
        self._timer = v1.train.SecondOrStepTimer(every_steps=every_n_steps)
        self._output_dir = output_dir
        self._scaffold = scaffold
        self._step_reached = step_reached
        self._step_after = step_after
        self._started = False

    def begin(self) -> None:
        """Opens the events, through the cache: two writers on a folder overwrite each other."""
        self._writer = v1.summary.FileWriterCache.get(self._output_dir)

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs | None:
        """Adds the summaries to a step that is due."""
        due = self._timer.should_trigger_for_step(self._step_reached() + 1)
        summary_op = self._scaffold.summary_op
        if not due or summary_op is None:
            return None
        return v1.train.SessionRunArgs([summary_op, self._step_after])

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        if run_values.results is None:
            return
        summary, step = run_values.results
        step = int(step)
        self._timer.update_last_triggered_step(step)
        if not self._started:
            self._writer.add_session_log(v1.SessionLog(status=v1.SessionLog.START), step)
            self._started = True
        self._writer.add_summary(summary, step)

    def end(self, session: v1.Session) -> None:
        self._writer.flush()


class SteadySummaryHook(v1.train.SummarySaverHook):
    """A SummarySaverHook that fetches the summaries with each call, and writes those that are due."""

    # For each set of fetches, a session optimizes and instantiates the graph's functions again. For a loop with
    # many replicas, that takes longer than the loop. So this hook is for summaries that cost next to nothing, of
    # tensors that a call fetches anyway.

    _summary: Any = None

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs:
        """Fetches step and summaries; the first call's are always due."""
        fetches = dict(super().before_run(run_context).fetches)
        self._summary = fetches.get("summary", self._summary)
        if self._summary is not None:
            fetches["summary"] = self._summary
        return v1.train.SessionRunArgs(fetches)


_WRITER_OP_TYPES = frozenset({"CreateSummaryFileWriter", "CreateSummaryDbWriter"})


class HostCallHook(v1.train.SessionRunHook):
    """Fetches host_call's results with every step; opens and flushes its v2 summary writers."""

    def __init__(self, fetches: Any):
        self._fetches = fetches
        self._open_writers: list[tf.Operation] = []
        self._flush_writers: list[tf.Operation] = []

    @property
    def runs_each_step(self) -> bool:
        """Whether there is anything to fetch."""
        return bool(tf.nest.flatten(self._fetches))

    def begin(self) -> None:
        """Finds the summary writers of the graph, before it is finalized."""
        graph = v1.get_default_graph()
        if graph.finalized:  # By a session before.
            return
        self._open_writers = [op for op in graph.get_operations() if op.type in _WRITER_OP_TYPES]
        self._flush_writers = [
            tf.raw_ops.FlushSummaryWriter(writer=op.inputs[0]) for op in self._open_writers
        ]

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        session.run(self._open_writers)

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs:
        return v1.train.SessionRunArgs(self._fetches)

    def end(self, session: v1.Session) -> None:
        session.run(self._flush_writers)


# The model_dir of the call that ended last, whose event files stay open, as in TensorFlow.
_latest_dir: str | None = None
_openings = itertools.count(1)


@contextlib.contextmanager
def events_of(model_dir: str) -> Iterator[None]:
    """Closes the event files of the previous call's model_dir when a call in another one ends."""
    # `FileWriterCache` keeps a writer for each folder, so all calls in it write one file, and
    # each writer holds a thread and a file descriptor until the process ends. A closed writer opens
    # a new file when it is used again.
    global _latest_dir
    try:
        yield
    finally:
        former, _latest_dir = _latest_dir, model_dir
        if former not in (None, model_dir):
            _close_events(former)


def _close_events(model_dir: str) -> None:
    for folder, writer in tf_private.cached_event_writers():
        # Evaluations have subfolders.
        if folder == model_dir or folder.startswith(os.path.join(model_dir, "")):
            try:
                writer.event_writer.close()
            except Exception as error:  # A full disk, for example, causes an IndexError here.
                _logger.warning("The last events of %s can't be written: %s", folder, error)
            writer.event_writer = _ClosedEvents(writer)


class _ClosedEvents:
    """Replaces a `FileWriter`'s open file until there is an event to write."""

    def __init__(self, writer: v1.summary.FileWriter) -> None:
        self._writer = writer
        self._folder = writer.get_logdir()

    def add_event(self, event: Any) -> None:
        # A file's name contains the second of its opening: without a suffix, two of the same second would overwrite
        # each other.
        suffix = f".{os.getpid()}.{next(_openings):06}"
        # A FileWriter needs a graph; this one stays empty.
        with tf.Graph().as_default():
            opened = v1.summary.FileWriter(self._folder, filename_suffix=suffix)
        self._writer.event_writer = opened.event_writer
        opened.event_writer.add_event(event)

    def get_logdir(self) -> str:
        return self._folder

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def reopen(self) -> None:
        pass
