"""Attempts at a training that fails for as long as a file is there."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
from typing import Any

import pytest
import tensorflow as tf

from tests.components.trainer.execution import Execution
from tests.components.trainer.interrupted import model

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
        "module": model.__name__,
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
