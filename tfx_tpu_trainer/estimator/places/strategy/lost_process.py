"""A process that no longer answers the others: TensorFlow's words for it, put into one line."""

from __future__ import annotations

import re

import tensorflow as tf

from tfx_tpu_trainer._support.waiting import named

# "/job:worker/replica:0/task:1" and "/job:worker/task:1".
_TASK = re.compile(r"/job:(?P<job>\w+)(?:/replica:\d+)?/task:(?P<task>\d+)")
_CONNECTION_ERRORS = (
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)
_SIGNS = ("Collective ops is aborted", "from remote target /job:", "heartbeat timeout")


class ProcessLostError(RuntimeError):
    """A process of a training over several is gone; start all of them again to go on.

    It is none of the errors on which a MonitoredSession opens another session: once TensorFlow has
    aborted the collective ops of a process, each further one fails until that process ends.
    """


def lost_process(error: tf.errors.OpError, cluster: tf.train.ClusterSpec) -> str | None:
    """Says which process no longer answers."""
    if not isinstance(error, _CONNECTION_ERRORS):
        return None
    said = error.message or ""
    task = next((match for sign in _SIGNS if sign in said for match in _TASK.finditer(said)), None)
    if task is None:
        return None
    job, index = task["job"], int(task["task"])
    where = f"{job} {index}"
    if job in cluster.jobs and index in cluster.task_indices(job):
        where = named({where: cluster.task_address(job, index)})
    return (
        f"{where} no longer answers: it has ended, or the network between it and this process is "
        "down. A training over several processes can't continue without one of them: start all of "
        "them again, and they resume from the last checkpoint"
    )
