"""Starts a child process with one of our modules; reads the available memory."""

import ctypes
import pathlib
import re
import sys
from typing import Final

# cgroups version 1 writes nearly 2^63 for no limit.
_NO_CGROUP_LIMIT = 1 << 60

SAFE_PATH: Final = "import sys; sys.path[:] = filter(None, sys.path); "
"""The beginning of a program for `python -c` that ignores files in the working directory."""

_RUN_MODULE: Final = (
    f"{SAFE_PATH}import runpy; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def module_command(module: str, *arguments: str) -> list[str]:
    """Returns the command that runs one of our modules in its own process.

    `python -m` and `python -c` look for modules in the working directory first, where a file called csv.py would be run
    instead of Python's own. Python's option -P, which leaves that folder out, came with 3.11.
    """
    return [sys.executable, "-c", _RUN_MODULE, module, *arguments]


def available_memory(root: str = "/") -> int:
    """Returns the available memory in bytes."""
    found = [_of_machine(pathlib.Path(root, "proc/meminfo"))]
    cgroup = pathlib.Path(root, "sys/fs/cgroup")
    for folder, limit, usage in (
        (cgroup, "memory.max", "memory.current"),
        (cgroup / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        most = _number(folder / limit)
        if most is not None and most < _NO_CGROUP_LIMIT:
            # The usage includes page cache, which the kernel drops before it kills, so it is available.
            used = _number(folder / usage) or 0
            found.append(most - used + _cached(folder / "memory.stat"))
    return max(0, min(found))


def return_freed_memory() -> None:
    """Returns memory that the C library has freed to the system.

    The library keeps freed blocks for itself, some hundred MiB after a large graph has been built and its session
    opened; TensorFlow's tensors are allocated elsewhere, in addition. Takes milliseconds; does nothing if the C library
    is not glibc.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def _of_machine(path: pathlib.Path) -> int:
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _text(path), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _cached(path: pathlib.Path) -> int:
    # cgroups version 1 has a total that includes child groups, like its usage.
    found = re.findall(r"^(?:total_)?inactive_file (\d+)", _text(path), re.MULTILINE)
    return max(map(int, found), default=0)


def _number(path: pathlib.Path) -> int | None:
    text = _text(path).strip()
    # "max" means no limit.
    return int(text) if text.isdecimal() else None


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
