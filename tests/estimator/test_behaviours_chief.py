"""What only the chief does: a chief and a worker train one model on a server of this process."""

from __future__ import annotations

import functools
import json

import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tfx_tpu_trainer.estimator import Estimator, EstimatorSpec, RunConfig

v1 = tf.compat.v1

CLUSTER = {"chief": ["h0:1"], "worker": ["h1:1"]}


class _Counts(v1.train.SessionRunHook):
    """Counts session calls."""

    def __init__(self) -> None:
        self.calls = 0

    def after_run(self, run_context, run_values):
        self.calls += 1


def _train(folder, monkeypatch, task: str, master: str, *, max_steps: int) -> tuple[int, int]:
    """Trains as a task of the cluster; gives the calls of a training hook and of a chief hook."""
    task_config = {"cluster": CLUSTER, "task": {"type": task, "index": 0}, "session_master": master}
    monkeypatch.setenv("TF_CONFIG", json.dumps(task_config))
    every, chief = _Counts(), _Counts()

    def model_fn(features, labels, mode):
        loss = tf.reduce_mean(tf.square(linear_model.outputs_of(features) - labels))
        optimizer = v1.train.GradientDescentOptimizer(linear_model.RATE)
        return EstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss, v1.train.get_global_step()),
            training_hooks=[every],
            training_chief_hooks=[chief],
        )

    # With a session config of its own there are no device filters of a cluster that is not there.
    config = RunConfig(model_dir=folder, session_config=v1.ConfigProto())
    assert config.is_chief is (task == "chief")
    input_fn = functools.partial(linear_model.input_fn, {"batch_size": 6}, epochs=10)
    Estimator(model_fn, config=config).train(input_fn, max_steps=max_steps)
    return every.calls, chief.calls


@pytest.mark.behaviour(263)
def test_chief_hooks_and_checkpoints_are_the_chiefs_only(tmp_path, monkeypatch):
    server = tf.distribute.Server.create_local_server()
    train = functools.partial(_train, monkeypatch=monkeypatch, master=server.target)
    assert train(tmp_path / "chief", task="chief", max_steps=3) == (3, 3)
    assert (tmp_path / "chief" / "model.ckpt-3.index").exists()
    # The worker finds the variables on the server, and goes on with them.
    assert train(tmp_path / "worker", task="worker", max_steps=5) == (2, 0)
    assert not list(tmp_path.glob("worker/model.ckpt*"))
