"""The command of a process that runs one of our modules, whatever files lie in the working directory.

`python -m` and `python -c` look for modules in the working directory first, where a file called csv.py would be run
instead of Python's own. Python's option -P, which leaves that folder out, came with 3.11.
"""

from __future__ import annotations

import sys
from typing import Final

SAFE_PATH: Final = "import sys; sys.path[:] = filter(None, sys.path); "
"""The start of such a program."""

_RUN_MODULE: Final = (
    f"{SAFE_PATH}import runpy; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def module_command(module: str, *arguments: str) -> list[str]:
    """Returns the command of a module."""
    return [sys.executable, "-c", _RUN_MODULE, module, *arguments]
