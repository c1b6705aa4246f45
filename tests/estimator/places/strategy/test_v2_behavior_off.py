"""Programs for TensorFlow 1: `disable_v2_behavior()`, and a strategy that the program makes itself."""

import json
import subprocess
import sys

import numpy as np
import pytest

from tests.programs.fetching import REPOSITORY

# That call holds for a process, so each test has its own process.
PROGRAM = """
import json
import sys
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

from tfx_tpu_trainer import compat

tf.disable_v2_behavior()
compat.install()
cpu = tf.config.experimental.list_physical_devices("CPU")[0]
device = tf.config.experimental.VirtualDeviceConfiguration
tf.config.experimental.set_virtual_device_configuration(cpu, [device(), device()])
X, Y = np.load(sys.argv[1]).values()
reduction = tf.distribute.ReductionToOneDevice()
devices = ["/cpu:0", "/cpu:1"]
strategies = {
    "none": lambda: None,
    # Programs ask for GPUs, which this host has not.
    "mirrored_gpu": lambda: tf.distribute.MirroredStrategy(["/gpu:0"]),
    "mirrored": lambda: tf.distribute.MirroredStrategy(devices[:1], reduction),
    "mirrored_2": lambda: tf.distribute.MirroredStrategy(devices, reduction),
    "one_device": lambda: tf.distribute.OneDeviceStrategy("/cpu:1"),
    "central_2": lambda: tf.distribute.experimental.CentralStorageStrategy(devices, "/cpu:0"),
    "parameter_server": lambda: tf.distribute.experimental.ParameterServerStrategy(),
}


def input_fn(params):
    return tf.data.Dataset.from_tensor_slices((X, Y)).repeat().batch(8)


def model_fn(features, labels, mode, params):
    weights = tf.get_variable("weights", [2, 1], initializer=tf.zeros_initializer())
    predicted = tf.squeeze(tf.matmul(features, weights), 1)
    assert features.shape[1].value == 2
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"p": predicted})
    loss = tf.losses.mean_squared_error(labels, predicted)
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    error = tf.metrics.mean_absolute_error(labels, predicted)
    return tf.estimator.EstimatorSpec(
        mode, loss=loss, train_op=train_op, eval_metric_ops={"error": error}
    )


class Steps(tf.train.SessionRunHook):
    def before_run(self, context):
        return tf.train.SessionRunArgs(tf.train.get_global_step())


def run(strategy):
    config = tf.estimator.tpu.RunConfig(train_distribute=strategy, eval_distribute=strategy)
    folder = tempfile.mkdtemp()
    for steps in (6, 10):
        estimator = tf.estimator.tpu.TPUEstimator(
            model_fn, folder, config, use_tpu=False, train_batch_size=8, eval_batch_size=8,
            predict_batch_size=8,
        )
        estimator.train(input_fn, max_steps=steps, hooks=[Steps()])
    predictions = estimator.predict(input_fn)
    return {
        "weights": estimator.get_variable_value("weights").ravel().tolist(),
        "evaluated": {k: float(v) for k, v in estimator.evaluate(input_fn, steps=2).items()},
        "predicted": [float(next(predictions)["p"]) for _ in range(3)],
    }


print(json.dumps({name: run(strategies[name]()) for name in sys.argv[2:]}))
"""

X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(32, 2) ** 2
Y = X @ np.float32([2, -3])


def _expected(replicas: int) -> tuple[np.ndarray, dict[str, float]]:
    """Gradient descent by hand: a step takes a batch for each replica, a new run restarts the input."""
    batches = [(X[at : at + 8], Y[at : at + 8]) for at in range(0, 32, 8)]
    weights = np.zeros(2)
    for steps in (6, 4):
        for step in range(steps):
            taken = [batches[(step * replicas + each) % 4] for each in range(replicas)]
            gradients = [2 / 8 * x.T @ (x @ weights - y) for x, y in taken]
            weights = weights - 0.1 * np.mean(gradients, axis=0)
    rows = 2 * 8 * replicas
    difference = X[:rows] @ weights - Y[:rows]
    metrics = {"loss": np.mean(difference**2), "error": np.mean(np.abs(difference))}
    return weights, {**metrics, "global_step": 10}


@pytest.mark.e2e
@pytest.mark.parametrize(
    "names",
    [
        ["mirrored_2"],
        pytest.param(
            ["none", "mirrored", "mirrored_gpu", "one_device", "central_2", "parameter_server"],
            marks=pytest.mark.sweep,
        ),
    ],
)
def test_a_program_of_tensorflow_1_trains_under_its_strategy(tmp_path, names):
    """The original gives these numbers too: for two replicas weights of -0.29378 after ten steps in one run."""
    np.savez(tmp_path / "rows.npz", x=X, y=Y)
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    ended = _run(tmp_path, "rows.npz", *names)
    assert ended.returncode == 0, ended.stderr[-3000:]
    results = json.loads(ended.stdout.splitlines()[-1])
    for name, result in results.items():
        weights, metrics = _expected(2 if name.endswith("_2") else 1)
        np.testing.assert_allclose(result["weights"], weights, rtol=1e-5)
        assert result["evaluated"] == pytest.approx(metrics, rel=1e-4)
        np.testing.assert_allclose(result["predicted"], X[:3] @ weights, rtol=1e-5)


REFUSED = """
import os

os.environ["TF_CONFIG"] = (
    '{"cluster": {"worker": ["localhost:1", "localhost:2"]}, "task": {"type": "worker", "index": 0}}'
)
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()

from tfx_tpu_trainer.estimator import Estimator, RunConfig


def called(features=None, mode=None):
    raise AssertionError("it was called")


estimator = Estimator(called, config=RunConfig(train_distribute=strategy))
estimator.train(lambda: called(), steps=1)
"""


@pytest.mark.e2e
@pytest.mark.sweep
def test_replicas_in_other_processes_are_refused_before_anything_is_traced(tmp_path):
    (tmp_path / "program.py").write_text(REFUSED, encoding="utf-8")
    ended = _run(tmp_path)
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("RuntimeError: CollectiveAllReduceStrategy")
    assert "disable_v2_behavior(). Remove that call" in last


def _run(folder, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, folder / "program.py", *words],
        cwd=folder,
        env={"PATH": "", "PYTHONPATH": str(REPOSITORY), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
