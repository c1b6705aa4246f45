"""Files that only this process sees: in memory, and on local disk when they outgrow it."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from typing import IO

import numpy as np

DISK_SHARE = 0.5
"""How much of the free disk space the files may take."""


def can_be_kept() -> bool:
    """Tells whether this system has files without a name that can be opened by a path: Linux has."""
    return hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")


class ColumnFiles:
    """Arrays that grow at their end, each in a file without a name: nothing of it outlives the process."""

    # `memory` is in bytes; what it does not hold goes into files in `folder`.
    def __init__(self, *, memory: int, folder: str | None = None) -> None:
        self.folder = folder or tempfile.gettempdir()
        self.memory = self._room = memory
        self._on_disk = False
        self._size = 0
        self._files: dict[str, IO[bytes]] = {}

    def __len__(self) -> int:
        """Bytes of all files."""
        return self._size

    @property
    def place(self) -> str:
        """Where they are, in words."""
        return f"on disk (below {self.folder})" if self._on_disk else "in memory"

    def append(self, name: str, values: np.ndarray) -> None:
        """Writes values at the end of a file."""
        data = np.ascontiguousarray(values).data.cast("B") if values.size else memoryview(b"")
        if not self._on_disk and self._size + len(data) > self._room:
            self._move_to_disk()
        if self._size + len(data) > self._room:
            raise OSError(
                errno.ENOSPC,
                f"they need more than {_gigabytes(self._room)}, half of what is free there",
                self.folder,
            )
        if name not in self._files:
            self._files[name] = self._opened()
        _write(self._files[name], data)
        self._size += len(data)

    def path(self, name: str) -> str:
        """Returns a path by which this process can open a file."""
        return f"/proc/self/fd/{self._files[name].fileno()}"

    def close(self) -> None:
        """Releases memory and disk space, once nobody has the files open or mapped any more."""
        for file in self._files.values():
            file.close()
        self._files = {}

    def _opened(self) -> IO[bytes]:
        if self._on_disk:
            return tempfile.TemporaryFile(dir=self.folder, buffering=0)
        return os.fdopen(os.memfd_create("rows"), "r+b", buffering=0)

    def _move_to_disk(self) -> None:
        self._on_disk = True
        self._room = int(shutil.disk_usage(self.folder).free * DISK_SHARE)
        for name, in_memory in self._files.items():
            in_memory.seek(0)
            self._files[name] = self._opened()
            with in_memory:
                while data := in_memory.read(1 << 24):
                    _write(self._files[name], memoryview(data))


def _write(file: IO[bytes], data: memoryview) -> None:
    # One call writes 2 GiB at most, and less where the disk is full.
    while data:
        data = data[file.write(data) :]


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"
