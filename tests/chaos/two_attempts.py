"""Runs two attempts at once: the older one is paused at one of its writes, and continues after a newer one began."""

import contextlib
import functools
import os
import signal
import time
from pathlib import Path

import tensorflow as tf

from tests.chaos.attempt import NODE, Plan, in_process, train
from tests.chaos.checks import Ending
from tests.chaos.writes import Writes
from tfx_tpu_trainer.components.trainer.resume import RECORD_FILE

_PATIENCE_SECONDS = 300


def training(plan: Plan, folder: Path, *, pause_at: int | None = None) -> None:
    """Trains, counting writes.

    Args:
        plan: The training.
        folder: The folder for all files, at the places that `run.Execution` gives them.
        pause_at: Number of the write, from 1, before which the process pauses. Defaults to `None`:
            it does not.
    """
    Writes(folder, pause_at).watch()
    train(plan, folder / "outputs", folder / "checkpoints")


def older_and_newer(
    plan: Plan, folder: Path, pauses: tuple[int, int | None], expected: Ending
) -> list[str]:
    """Pauses an older attempt, starts a newer one, and lets the older one continue.

    Args:
        plan: The training.
        folder: The folder for the files of both.
        pauses: Number of the older one's write before which it is paused, and of the newer one's
            before which that is paused until the older one has ended; with `None` it has ended before.
        expected: What one of them leaves alone, without a push.

    Returns:
        A line for each thing that is not as it should be.
    """
    folder.mkdir()
    older = _Attempt(plan, folder, "older.txt", pauses[0])
    if not older.is_paused:
        return [f"the older one has ended before its write {pauses[0]}: {older.log}"]
    had_the_folder = _owner(folder) is not None
    # What is left to it then is to remove its checkpoints.
    had_done_all = not _unequal(folder, expected)
    newer = _Attempt(plan, folder, "newer.txt", pauses[1])
    was_replaced = (
        had_the_folder and not had_done_all and (not newer.is_paused or newer.has_the_folder)
    )
    problems = []
    if not newer.is_paused:
        problems = [f"before the older one went on: {line}" for line in _unequal(folder, expected)]
    older.go_on()
    newer.go_on()
    problems += _unequal(folder, expected)
    if was_replaced:
        if newer.code:
            problems.append(f"the newer one ended with {newer.code}: {newer.log}")
        if not older.code or "Another attempt at this training" not in older.last_error:
            problems.append(f"the older one ended with {older.code}: {older.log}")
    elif older.code and newer.code:
        # Neither had the folder, so either may take it from the other.
        problems.append(f"neither has ended well: {older.log}, {newer.log}")
    return problems


def _unequal(folder: Path, expected: Ending) -> list[str]:
    try:
        return Ending.read(folder / "outputs", folder / "checkpoints", None).differences(expected)
    except (OSError, ValueError, tf.errors.OpError) as error:
        return [f"not all is there: {error}"]


class _Attempt:
    """An attempt that runs to its pause, or to its end if that comes before."""

    def __init__(self, plan: Plan, folder: Path, log: str, pause_at: int | None) -> None:
        self._folder, self.log = folder, folder / log
        self.code: int | None = None
        before = _owner(folder)
        work = functools.partial(training, plan, folder, pause_at=pause_at)
        self._process = in_process(work, self.log)
        self._wait(os.WUNTRACED)
        self.has_the_folder = _owner(folder) not in (None, before)

    @property
    def is_paused(self) -> bool:
        return self.code is None

    def go_on(self) -> None:
        """Lets it run to its end."""
        if self.is_paused:
            os.kill(self._process, signal.SIGCONT)
            self._wait(0)

    @property
    def last_error(self) -> str:
        """Returns the last line of its log with an error."""
        lines = [line for line in self.log.read_text().splitlines() if "Error: " in line]
        return lines[-1] if lines else ""

    def _wait(self, options: int) -> None:
        until = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < until:
            ended, status = os.waitpid(self._process, os.WNOHANG | options)
            if ended:
                self.code = None if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)
                return
            time.sleep(0.02)
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        self.code = -signal.SIGKILL


def _owner(folder: Path) -> str | None:
    """Returns the record of the attempt that trains in the checkpoint folder."""
    for path in (folder / "checkpoints" / NODE).glob(f"*/{RECORD_FILE}"):
        with contextlib.suppress(FileNotFoundError):
            return path.read_text()
    return None
