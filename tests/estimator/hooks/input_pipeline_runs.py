"""Trainings with a CheckpointInputPipelineHook: the rows that they see, and the files that they leave.

`original_input_pipeline.json` is what the original made of them, TensorFlow 2.15.1:

    python -m tests.estimator.hooks.input_pipeline_runs > tests/estimator/hooks/original_input_pipeline.json
"""

import contextlib
import json
import os
import sys
import tempfile
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1


class _Rows(v1.train.SessionRunHook):
    def __init__(self):
        self.seen = []

    def before_run(self, run_context):
        return v1.train.SessionRunArgs(v1.get_default_graph().get_tensor_by_name("ids:0"))

    def after_run(self, run_context, run_values):
        self.seen.append(run_values.results.tolist())


class _Killed(Exception):  # noqa: N818
    pass


class _KillAt(v1.train.SessionRunHook):
    def __init__(self, step):
        self._step = step

    def after_run(self, run_context, run_values):
        if run_context.session.run(v1.train.get_global_step()) >= self._step:
            raise _Killed


def _input_fn():
    rows = tf.data.Dataset.range(24).shuffle(10, seed=3).repeat()
    return rows.map(lambda row: {"id": row}).batch(4)


def _random_input_fn():
    def with_noise(row):
        return {"id": row + tf.random.uniform([], maxval=1, dtype=tf.int64)}

    return tf.data.Dataset.range(24).map(with_noise).batch(4)


def _files(folder):
    return sorted(name for name in os.listdir(folder) if "events" not in name)


def _state(folder):
    with open(os.path.join(folder, "checkpoint_input"), encoding="utf-8") as file:
        return [os.path.basename(line.split('"')[1]) for line in file if '"' in line]


def run(api: Any, hook_class: Any) -> dict[str, Any]:
    """Makes the trainings.

    Args:
        api: The original's `tf.estimator`, or ours.
        hook_class: The original's `CheckpointInputPipelineHook`, or ours.
    """

    def model_fn(features, mode):
        ids = tf.identity(features["id"], name="ids")
        weight = v1.get_variable("weight", [], initializer=v1.zeros_initializer())
        loss = tf.square(weight - tf.reduce_mean(tf.cast(ids, tf.float32)))
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return api.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def estimator(folder):
        config = api.RunConfig(model_dir=folder, save_checkpoints_steps=5, keep_checkpoint_max=2)
        return api.Estimator(model_fn, config=config)

    results: dict[str, Any] = {}
    folder = tempfile.mkdtemp()
    for name, steps, killed_at in (
        ("first", {"max_steps": 12}, None),
        ("in pieces", {"steps": 3}, None),
        ("killed", {"max_steps": 30}, 23),
        ("resumed", {"max_steps": 30}, None),
    ):
        trained, rows = estimator(folder), _Rows()
        hooks = [rows, hook_class(trained)]
        if killed_at:
            hooks.append(_KillAt(killed_at))
        with contextlib.suppress(_Killed):
            trained.train(_input_fn, hooks=hooks, **steps)
        results[name] = {"rows": rows.seen, "files": _files(folder), "state": _state(folder)}
    folder = tempfile.mkdtemp()
    trained = estimator(folder)
    try:
        trained.train(_random_input_fn, hooks=[hook_class(trained)], steps=3)
    except tf.errors.FailedPreconditionError:
        results["random ops"] = "FailedPreconditionError"
    folder = tempfile.mkdtemp()
    trained = estimator(folder)
    trained.train(_random_input_fn, hooks=[hook_class(trained, "ignore")], steps=3)
    results["random ops ignored"] = _files(folder)
    return results


if __name__ == "__main__":
    json.dump(
        run(tf.estimator, tf.data.experimental.CheckpointInputPipelineHook), sys.stdout, indent=1
    )
