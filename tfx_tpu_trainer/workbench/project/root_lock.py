"""The lock of a root: one run at a time, and whether one is going on just now."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

NAME = ".lock"

# Who looks whether a run goes on holds the lock for an instant.
_LOOK_SECONDS, _PAUSE_SECONDS = 0.1, 0.05
# A run whose process was killed holds it until the system has ended its child.
_END_SECONDS = 10.0


class LockedError(RuntimeError):
    """Another process holds the lock; the message says which, and how to stop it."""


@contextlib.contextmanager
def locked(root: Path) -> Iterator[IO[str]]:
    """Holds a root for the block, and for child processes that are given the file."""
    # Not "w": what the holder has written stays until this process holds it.
    with (root / NAME).open("a+") as lock:
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
        # On a full disk the lock says nothing, and what the run writes first says why.
        with contextlib.suppress(OSError):
            os.write(lock.fileno(), json.dumps({"pid": os.getpid(), "since": time.time()}).encode())
        yield lock


def held_since(root: Path) -> float | None:
    """Since when a run is going on in a root."""
    with (root / NAME).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _written(root, "since")
    return None


def _written(root: Path, key: str) -> float:
    """Reads a number that the holder has written; 0 where there is none."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return float(json.loads((root / NAME).read_text(encoding="utf-8"))[key])
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
    """Names the process that holds the lock, in words."""
    if not pid:
        return "its process is not known"
    if not _lives(pid):
        return f"process {pid} of another machine or container"
    return f"process {pid}, which `kill {pid}` stops"
