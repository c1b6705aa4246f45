"""Defines a root: the folder of a pipeline's runs, with its lock, unfinished trainings and TensorBoard links."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import ml_metadata

from tfx_tpu_trainer.workbench.project import metadata
from tfx_tpu_trainer.workbench.project.config import ConfigError, PipelineConfig

METADATA_FILE = "metadata.sqlite"
LOGS = "logs"
_LOCK_FILE = ".lock"
# A process that checks whether a run is in progress holds the lock for an instant.
_LOOK_SECONDS, _PAUSE_SECONDS = 0.1, 0.05

# A killed run holds the lock until the system has ended its child.
_END_SECONDS = 10.0

CHECKPOINTS = "checkpoints"
"""A root's folder for its pipelines' checkpoints, by the pipeline's name."""

_INDEX = re.compile(r"model\.ckpt-(\d+)\.index$")
# The names that `tfx_tpu_trainer.components.trainer.resume` gives to unusable folders.
_ASIDE = re.compile(r"\.aside-[0-9a-f]+$")

REPORTS = "reports"
"""Folder of a root for pages: `reports/<run>/run.html`, comparisons, and the model card."""

TENSORBOARD = "tensorboard"
"""Folder of a root: `tensorboard/<pipeline>-<time>/train` and `/eval`, of links to the events.

TensorBoard shows a run by its folder's name, and TFX names a training's folder `7`.
"""

_EVENTS = "*.tfevents.*"
# Files next to the events that TensorBoard's plugins read.
_BESIDE = ("plugins", "projector_config.pbtxt")


# A run's name is the microsecond of its start.
_TO_THE_SECOND = len("2026-11-25T15:45:35")


def short_name(run: str) -> str:
    """Shortens a run's name to a beginning that identifies it."""
    return run[:_TO_THE_SECOND]


@dataclasses.dataclass(frozen=True)
class Root:
    """The folder of a pipeline's runs."""

    folder: Path
    metadata_file: Path

    @classmethod
    def at(cls, path: str) -> Root:
        """Returns the root with a folder, or with a file of ML Metadata."""
        place = Path(os.path.abspath(os.path.expanduser(path)))
        if place.is_file():
            return cls(place.parent, place)
        return cls(place, place / METADATA_FILE)

    @classmethod
    def of(cls, config: PipelineConfig) -> Root:
        """Returns the root of a project's runs."""
        return cls(Path(config.root), Path(config.metadata_file))

    def store(self) -> ml_metadata.MetadataStore:
        """Opens ML Metadata for reading."""
        if not self.metadata_file.is_file():
            raise ConfigError(
                f"{str(self.folder)!r} has no runs (no {self.metadata_file.name}); run the "
                "pipeline first, or give another root with --root"
            )
        try:
            return metadata.open_store(self.metadata_file)
        except metadata.UnreadableError as error:
            raise ConfigError(
                f"{error}; give the root of a pipeline's runs with --root, such as runs/taxi"
            ) from None

    @property
    def reports(self) -> Path:
        """The folder of the runs' pages."""
        return self.folder / REPORTS

    def report_folder(self, run: str) -> Path:
        """Returns the folder of a run's page."""
        return self.reports / run.replace(":", "-")

    def log_folder(self, began: float) -> Path | None:
        """Returns the folder of a run's log, config and report."""
        before = [path for path in (self.folder / LOGS).glob("*") if path.is_dir()]
        return max((path for path in before if made(path) <= began), key=made, default=None)


def made(folder: Path) -> float:
    """Returns when a run's folder was made, in seconds since 1970."""
    first = folder / "config.json"
    return (first if first.exists() else folder).stat().st_mtime


class LockedError(RuntimeError):
    """Another process holds the lock; the message names it and how to stop it."""


@contextlib.contextmanager
def locked(root: Path) -> Iterator[IO[str]]:
    """Holds a root for the block, and for child processes that inherit the file."""
    # flock belongs to the open file instead of the process: a run's child inherits the descriptor, so the lock
    # lasts until the run and its child have both ended, even if the run is killed. The system releases it, so no
    # stale lock stays. The pid in the file is for the message, and to decide how long to wait: a live holder keeps the
    # lock for hours; a dead one has a child that ends within seconds. The mode is not "w", which would erase the
    # holder's pid before this process holds the lock.
    with (root / _LOCK_FILE).open("a+") as lock:
        began = time.monotonic()
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pid = int(_written(root, "pid"))
                patience = _END_SECONDS if pid and not _lives(pid) else _LOOK_SECONDS
                if time.monotonic() - began > patience:
                    raise LockedError(_holder(pid)) from None
                time.sleep(_PAUSE_SECONDS)
        lock.truncate(0)
        # On a full disk the lock stays empty; the run's first write reports the reason.
        with contextlib.suppress(OSError):
            os.write(lock.fileno(), json.dumps({"pid": os.getpid(), "since": time.time()}).encode())
        yield lock


def held_since(root: Path) -> float | None:
    """Returns since when a run is in progress; None if there is none."""
    with (root / _LOCK_FILE).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _written(root, "since")
    return None


def _written(root: Path, key: str) -> float:
    """Reads a number that the holder wrote; 0 if there is none."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return float(json.loads((root / _LOCK_FILE).read_text(encoding="utf-8"))[key])
    return 0.0


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _holder(pid: int) -> str:
    """Describes the process that holds the lock."""
    if not pid:
        return "its process is not known"
    if not _lives(pid):
        return f"process {pid} of another machine or container"
    return f"process {pid}, which `kill {pid}` stops"


@dataclasses.dataclass(frozen=True)
class UnfinishedTraining:
    """The checkpoint folder of a training that has not finished; a finished one removes it."""

    folder: Path
    node: str
    # The step of the newest checkpoint; None if there is none.
    step: int | None
    # The last modification in it, in seconds since 1970.
    written: float
    # Whether it was set aside as unusable.
    set_aside: bool


def unfinished_trainings(checkpoints: Path) -> list[UnfinishedTraining]:
    """Returns the trainings that have not finished."""
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
    """Returns the step of the newest checkpoint in a run's last training."""
    steps = [
        training.step
        for training in unfinished_trainings(checkpoints)
        if training.written >= since and training.step is not None and not training.set_aside
    ]
    return steps[-1] if steps else None


def _last_write(folder: Path) -> float:
    """Returns the last modification below a folder, in seconds since 1970; 0.0 without files.

    A running training removes files and folders meanwhile; missing ones are skipped.
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


def link_run(root: Path, model_run: Path, *, name: str) -> Path:
    """Links the events of a training, unless an earlier run has."""
    below = root / TENSORBOARD
    remove_dead_links(below)
    targets = {link.resolve() for link in _links(below)}
    for folder, label in _folders(model_run):
        events = sorted(folder.glob(_EVENTS))
        if not events or events[0].resolve() in targets:
            continue
        beside = [folder / name for name in _BESIDE if (folder / name).exists()]
        run = below / name / label
        run.mkdir(parents=True, exist_ok=True)
        for path in (*events, *beside):
            link = run / path.name
            if not link.is_symlink():
                # A relative link, so a root can be moved.
                link.symlink_to(os.path.relpath(path, link.parent))
    return below


def remove_dead_links(below: Path) -> None:
    """Removes links to missing events, and folders that become empty."""
    for link in _links(below):
        if link.exists():
            continue
        link.unlink()
        for folder in link.parents:
            if folder == below or any(folder.iterdir()):
                break
            folder.rmdir()


def _folders(model_run: Path) -> list[tuple[Path, str]]:
    """Returns the folders with events: a training's own, and its evaluations'."""
    evaluations = sorted(path for path in model_run.iterdir() if path.is_dir())
    return [(model_run, "train"), *((path, path.name) for path in evaluations)]


def _links(below: Path) -> list[Path]:
    return [path for path in below.glob("*/*/*") if path.is_symlink()]
