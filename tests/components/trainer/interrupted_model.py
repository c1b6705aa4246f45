"""A small model that fails while a file exists, which says where ("train" or "infer"), and attempts at it."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
from typing import Any

import pytest
import tensorflow as tf

from tests.components.trainer import small_model
from tests.components.trainer.execution import Execution

v1 = tf.compat.v1

FAILS = "TEST_FAILS_WHILE"
FAILS_AT = 15

params = small_model.params


class _FailHook(v1.train.SessionRunHook):
    def begin(self):
        self._step = v1.train.get_global_step()

    def before_run(self, run_context):
        return v1.train.SessionRunArgs(self._step)

    def after_run(self, run_context, run_values):
        if run_values.results >= FAILS_AT - 1 and _failing_mode() == "train":
            raise ConnectionError("the machine is taken away")


def _failing_mode():
    path = pathlib.Path(os.environ[FAILS])
    return path.read_text() if path.exists() else None


def model_fn(features, labels, mode, params):
    if mode == "infer" == _failing_mode():
        raise ConnectionError("the machine is taken away")
    spec = small_model.model_fn(features, labels, mode, params)
    return spec._replace(training_hooks=[_FailHook()]) if mode == "train" else spec


STEPS = 30


@dataclasses.dataclass(frozen=True)
class FailedAttempt:
    """An attempt that failed, which tests only read and copy.

    Attributes:
        execution: The attempt.
        checkpoint_root: Where its checkpoints are.
    """

    execution: Execution
    checkpoint_root: pathlib.Path

    def copy_to(self, folder: pathlib.Path) -> None:
        """Puts its checkpoints where an attempt in `folder` looks for them."""
        # Its events may still be in a buffer.
        tf.compat.v1.summary.FileWriterCache.clear()
        shutil.copytree(self.checkpoint_root, folder / "checkpoints")


def attempt(folder: pathlib.Path, name: str, **properties: Any) -> Execution:
    """An execution with an own folder for its artifacts, as each attempt has."""
    settings = {
        "node": "TpuTrainer",
        "module": __name__,
        "checkpoint_root": str(folder / "checkpoints"),
        "save_checkpoints_steps": 10,
        "eval_batch_size": 1000,
        "export_to_tpu": 0,
        "tf_random_seed": 1,
    }
    return Execution.of_trainer(folder / name, steps=STEPS, **{**settings, **properties})


def fail(execution: Execution) -> None:
    """Runs an attempt that fails."""
    with pytest.raises(ConnectionError, match="taken away"):
        execution.run()
