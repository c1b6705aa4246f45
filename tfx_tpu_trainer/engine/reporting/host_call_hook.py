"""Runs a model's host_call in a session, once a step."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

v1 = tf.compat.v1

_WRITER_OP_TYPES = frozenset({"CreateSummaryFileWriter", "CreateSummaryDbWriter"})


class HostCallHook(v1.train.SessionRunHook):
    """Fetches what host_call returned with every step.

    Summary writers of the v2 API that host_call made are opened before the first step and
    flushed at the end: in a graph nobody else does.
    """

    def __init__(self, fetches: Any):
        """Takes the ops to run.

        Args:
            fetches: What host_call returned: an op, a tensor or a nested structure of them.
        """
        self._fetches = fetches
        self._open_writers: list[tf.Operation] = []
        self._flush_writers: list[tf.Operation] = []

    @property
    def runs_each_step(self) -> bool:
        """Whether there is anything to run, beside opening and flushing writers."""
        return bool(tf.nest.flatten(self._fetches))

    def begin(self) -> None:
        """Finds the summary writers of the graph, before it is finalized."""
        graph = v1.get_default_graph()
        self._open_writers = [op for op in graph.get_operations() if op.type in _WRITER_OP_TYPES]
        self._flush_writers = [
            tf.raw_ops.FlushSummaryWriter(writer=op.inputs[0]) for op in self._open_writers
        ]

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Opens the writers."""
        del coord
        session.run(self._open_writers)

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs:
        """Adds the ops to the step."""
        del run_context
        return v1.train.SessionRunArgs(self._fetches)

    def end(self, session: v1.Session) -> None:
        """Flushes the writers."""
        session.run(self._flush_writers)
