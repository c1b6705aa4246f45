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
_LOOKS, _PAUSE_SECONDS = 3, 0.05


class LockedError(RuntimeError):
    """Another process holds the lock."""


@contextlib.contextmanager
def locked(root: Path) -> Iterator[IO[str]]:
    """Holds a root for the block, and for child processes that are given the file.

    Args:
        root: A folder that is there.

    Yields:
        The open lock file, in which stands since when it is held.

    Raises:
        LockedError: Another process holds it.
        OSError: The file cannot be written.
    """
    # Not "w": what the holder has written stays until this process holds it.
    with (root / NAME).open("a+") as lock:
        for look in range(_LOOKS):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if look == _LOOKS - 1:
                    raise LockedError from None
                time.sleep(_PAUSE_SECONDS)
        lock.truncate(0)
        # On a full disk the lock says nothing, and what the run writes first says why.
        with contextlib.suppress(OSError):
            os.write(lock.fileno(), json.dumps({"pid": os.getpid(), "since": time.time()}).encode())
        yield lock


def held_since(root: Path) -> float | None:
    """Since when a run is going on in a root.

    Args:
        root: The folder.

    Returns:
        Seconds since 1970, 0 where the lock's file does not say; None where no process holds the lock.

    Raises:
        OSError: There is no such file, or it cannot be read.
    """
    with (root / NAME).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                return float(json.loads(lock.read())["since"])
            return 0.0
    return None
