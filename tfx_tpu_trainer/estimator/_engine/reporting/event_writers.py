"""Closes the event files of a model_dir once the process works in another one."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private

v1 = tf.compat.v1
_logger = tf.get_logger()

# The model_dir of the call that ended last: its events stay open, as TensorFlow keeps them.
_latest_dir: str | None = None
_openings = itertools.count(1)


@contextlib.contextmanager
def events_of(model_dir: str) -> Iterator[None]:
    """Closes the events of the former call's model_dir when a call in another one ends.

    `FileWriterCache` keeps a writer for each folder, so that all calls in it write one file, and each writer holds a
    thread and a file descriptor until the process ends. So only the folders that were used last keep theirs. A writer
    that is closed opens a new file when something is written to it again.
    """
    global _latest_dir
    try:
        yield
    finally:
        former, _latest_dir = _latest_dir, model_dir
        if former not in (None, model_dir):
            _close_events(former)


def _close_events(model_dir: str) -> None:
    for folder, writer in tf_private.cached_event_writers():
        # Evaluations have folders of their own in it.
        if folder == model_dir or folder.startswith(os.path.join(model_dir, "")):
            try:
                writer.event_writer.close()
            except Exception as error:  # A full disk, for example, is an IndexError here.
                _logger.warning("The last events of %s can't be written: %s", folder, error)
            writer.event_writer = _ClosedEvents(writer)


class _ClosedEvents:
    """Stands in for a `FileWriter`'s open file until there is an event to write."""

    def __init__(self, writer: v1.summary.FileWriter) -> None:
        self._writer = writer
        self._folder = writer.get_logdir()

    def add_event(self, event: Any) -> None:
        # A file's name holds the second of its opening: one of the same second and name would be overwritten.
        suffix = f".{os.getpid()}.{next(_openings):06}"
        # A FileWriter is for graphs; nothing of this one is used.
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
