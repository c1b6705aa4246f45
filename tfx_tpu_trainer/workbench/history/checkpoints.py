"""What trainings have left in a root's folder of checkpoints, read without TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

CHECKPOINTS = "checkpoints"
"""Folder of a root for its pipelines' checkpoints, by the pipeline's name."""

_INDEX = re.compile(r"model\.ckpt-(\d+)\.index$")
# As `tfx_tpu_trainer.components.trainer.resume` names what it can't go on from.
_ASIDE = re.compile(r"\.aside-[0-9a-f]+$")


@dataclasses.dataclass(frozen=True)
class UnfinishedTraining:
    """A folder of checkpoints whose training has not come to its end: one that has removes it.

    Attributes:
        folder: The folder.
        node: The component that trained.
        step: The step of the newest checkpoint; None where there is none.
        written: When anything in it was written last, in seconds since 1970.
        set_aside: Whether a later attempt could not resume from it.
    """

    folder: Path
    node: str
    step: int | None
    written: float
    set_aside: bool


def unfinished_trainings(checkpoints: Path) -> list[UnfinishedTraining]:
    """The trainings that have not come to their end."""
    found = [
        UnfinishedTraining(
            folder=folder,
            node=folder.parent.name,
            step=max(_steps(folder), default=None),
            written=_last_write(folder),
            set_aside=_ASIDE.search(folder.name) is not None,
        )
        for folder in checkpoints.glob("*/*")
        if folder.is_dir() and not folder.is_symlink()
    ]
    return sorted(found, key=lambda training: training.written)


def step_to_go_on_from(checkpoints: Path, *, since: float) -> int | None:
    """The step of the newest checkpoint of the training that a run has made last."""
    steps = [
        training.step
        for training in unfinished_trainings(checkpoints)
        if training.written >= since and training.step is not None and not training.set_aside
    ]
    return steps[-1] if steps else None


def _last_write(folder: Path) -> float:
    """When a file below a folder was written last, in seconds since 1970; 0.0 without files.

    A training that runs removes files and folders meanwhile: what is gone is passed over.
    """
    last = 0.0
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(os.path.join(place, name))
                if not stat.S_ISDIR(status.st_mode):
                    last = max(last, status.st_mtime)
    return last


def _steps(folder: Path) -> Iterator[int]:
    for path in folder.iterdir():
        if found := _INDEX.search(path.name):
            yield int(found.group(1))
