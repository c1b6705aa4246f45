"""Memory that a process has freed and the C library holds."""

import contextlib
import ctypes
import pathlib
import re
from collections.abc import Callable, Iterator

import pytest

needs_glibc = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc"
)

_BLOCK = 60_000


@contextlib.contextmanager
def blocks_freed_but_held(*, megabytes: int) -> Iterator[Callable[[], int]]:
    """Frees blocks below one that is in use, so glibc doesn't return them by itself.

    Yields:
        Returns the process's resident memory in KiB.
    """
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    count = megabytes * 1_000_000 // _BLOCK
    blocks = [ctypes.c_void_p(library.malloc(_BLOCK)) for _ in range(count)]
    for block in blocks:
        ctypes.memset(block, 1, _BLOCK)
    for block in blocks[:-1]:
        library.free(block)
    try:
        yield _resident_kib
    finally:
        library.free(blocks[-1])


def _resident_kib() -> int:
    return int(re.search(r"VmRSS:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text())[1])
