"""Queue runners for the time of a block."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from tfx_tpu_trainer._support.imports import without_notice

v1 = tf.compat.v1

__all__ = ["QueueRunners"]


@contextlib.contextmanager
def QueueRunners(session: v1.Session) -> Iterator[None]:  # noqa: N802 - slim's name of it.
    """Starts the graph's queue runners, and ends them with the block."""
    coordinator = v1.train.Coordinator()
    threads = without_notice(v1.train.start_queue_runners)(session, coordinator)
    try:
        yield
    finally:
        coordinator.request_stop()
        coordinator.join(threads, stop_grace_period_secs=120, ignore_live_threads=True)
