"""What TensorFlow 2.16 says when a process of a strategy is gone, and what we make of it.

The messages were written down from trainings under MultiWorkerMirroredStrategy, each process in a
network namespace of its own, when one was killed or its link was down (tests/engines/test_hosts.py).
"""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator.places.strategy.feed import EagerThread
from tfx_tpu_trainer.estimator.places.strategy.lost_process import ProcessLostError, lost_process

CLUSTER = tf.train.ClusterSpec(
    {"chief": ["10.77.0.1:2222"], "worker": ["10.77.0.2:2222", "10.77.0.3:2222"]}
)
HEARTBEAT = (
    "Collective ops is aborted by: Error reported from /job:worker/task:1: Task "
    "/job:worker/replica:0/task:1 heartbeat timeout. This indicates that the remote task has "
    "failed, got preempted, or crashed unexpectedly."
)
CUT_OFF = (
    "Collective ops is aborted by: Deadline Exceeded\nAdditional GRPC error information from "
    "remote target /job:chief/replica:0/task:0 while calling /tensorflow.CoordinationService/Heartbeat:"
)
GONE = (
    "failed to connect to all addresses\nAdditional GRPC error information from remote target "
    "/job:worker/replica:0/task:0 while calling /tensorflow.WorkerService/RecvBuf:"
)


@pytest.mark.parametrize(
    ("error", "message", "named"),
    [
        pytest.param(
            tf.errors.UnavailableError, HEARTBEAT, "worker 1 (10.77.0.3:2222)", id="heartbeat"
        ),
        pytest.param(
            tf.errors.DeadlineExceededError, CUT_OFF, "chief 0 (10.77.0.1:2222)", id="cut off"
        ),
        pytest.param(tf.errors.UnavailableError, GONE, "worker 0 (10.77.0.2:2222)", id="gone"),
        pytest.param(
            tf.errors.AbortedError, HEARTBEAT.replace("worker", "ps"), "ps 1", id="no address"
        ),
    ],
)
def test_a_lost_process_is_named_in_one_line_that_says_how_to_go_on(error, message, named):
    said = lost_process(error(None, None, message), CLUSTER)
    assert said is not None
    assert said.startswith(f"{named} no longer answers")
    assert said.endswith("start all of them again, and they resume from the last checkpoint")
    assert "\n" not in said


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.OutOfRangeError(None, None, "End of sequence"),
        # An error of this process aborts its collective ops, too.
        tf.errors.InvalidArgumentError(None, None, f"nan; {HEARTBEAT}"),
        tf.errors.UnavailableError(None, None, "gs://bucket: 503 from /job:worker/task:1"),
        tf.errors.UnavailableError(None, None, "Collective ops is aborted by: no words"),
    ],
)
def test_other_errors_are_left_as_they_are(error):
    assert lost_process(error, CLUSTER) is None

    def fail():
        raise error

    with pytest.raises(type(error)) as raised:
        EagerThread(CLUSTER).run(fail)
    assert raised.value is error


def test_a_strategys_call_raises_no_error_that_a_session_is_opened_again_for():
    def fail():
        raise tf.errors.UnavailableError(None, None, HEARTBEAT)

    with pytest.raises(ProcessLostError, match=r"worker 1 \(10\.77\.0\.3:2222\)") as raised:
        EagerThread(CLUSTER).run(fail)
    assert isinstance(raised.value.__cause__, tf.errors.UnavailableError)
