"""Two trainings in one folder: what each of them says when the other has removed what it was writing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf

from tests.bad_input import case
from tfx_tpu_trainer.estimator._engine.checkpointing.write_errors import write_errors_explained


def _join_parts(folder: str) -> None:
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[f"{folder}/model.ckpt-5_temp/part-00000-of-00001"],
        destination_prefix=f"{folder}/model.ckpt-5",
    )


def _move(folder: str) -> None:
    tf.io.gfile.rename(f"{folder}/model.ckpt-5.index.tempstate1", f"{folder}/model.ckpt-5.index")


@pytest.mark.parametrize(
    "write",
    [
        case(
            "checkpoints",
            f"a model_dir in which another process trains and has removed {given}",
            "A checkpoint can't be written to ",
            f" ({name} is gone): another process trains in this folder, or removes its files. ",
            "give another model_dir. Training will resume from the last complete checkpoint",
            values=write,
        )
        for given, name, write in (
            ("a part of a checkpoint", "part-00000-of-00001", _join_parts),
            ("an unfinished file", "model.ckpt-5.index.tempstate1", _move),
        )
    ],
)
def test_a_file_that_another_process_has_removed_is_named(
    tmp_path: Path, write: Callable[[str], None], refused
) -> None:
    with (
        refused(tf.errors.FailedPreconditionError),
        write_errors_explained(os.fspath(tmp_path)),
    ):
        write(os.fspath(tmp_path))


def test_a_missing_file_elsewhere_is_what_it_was(tmp_path: Path) -> None:
    with (
        pytest.raises(tf.errors.NotFoundError, match="vocabulary"),
        write_errors_explained(os.fspath(tmp_path / "model_dir")),
    ):
        tf.io.read_file(os.fspath(tmp_path / "vocabulary"))
