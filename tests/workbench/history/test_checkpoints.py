"""What the runner sees of trainings that have not ended, one that is writing meanwhile among them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from tfx_tpu_trainer.workbench.history.checkpoints import unfinished_trainings

LOOKS = 500


def _training(checkpoints: Path) -> Path:
    folder = checkpoints / "TpuTrainer" / "83d93e379163339a"
    folder.mkdir(parents=True)
    for name in (
        "model.ckpt-100.index",
        "model.ckpt-200.index",
        "model.ckpt-200.data-00000-of-00001",
    ):
        (folder / name).touch()
    return folder


def test_the_last_write_is_the_newest_file_below_whatever_the_folders_say(tmp_path):
    folder = _training(tmp_path)
    (folder / "eval").mkdir()
    (folder / "eval" / "events.out").touch()
    for seconds, path in enumerate(path for path in folder.rglob("*") if path.is_file()):
        os.utime(path, (seconds, seconds))
    os.utime(folder / "eval" / "events.out", (1000, 1000))
    (found,) = unfinished_trainings(tmp_path)
    assert (found.node, found.step, found.written) == ("TpuTrainer", 200, 1000.0)


def test_a_training_that_writes_meanwhile_is_seen_without_an_error(tmp_path):
    folder = _training(tmp_path)
    seen = threading.Event()

    def write_checkpoints() -> None:
        part = folder / "model.ckpt-300_temp"
        while not seen.is_set():
            part.mkdir()
            (part / "part-00000-of-00001.index").touch()
            (part / "part-00000-of-00001.index").unlink()
            part.rmdir()

    writer = threading.Thread(target=write_checkpoints)
    writer.start()
    try:
        steps = {training.step for _ in range(LOOKS) for training in unfinished_trainings(tmp_path)}
    finally:
        seen.set()
        writer.join()
    assert steps == {200}
