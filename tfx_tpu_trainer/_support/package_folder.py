"""Where this package is installed, which tells its own files and stack frames from others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

PACKAGE_FOLDER: Final = Path(os.path.abspath(__file__)).parents[1]
"""The folder `tfx_tpu_trainer`; its parent goes onto the path of a child process."""

_PREFIX: Final = f"{PACKAGE_FOLDER}{os.sep}"


def is_of_this_package(path: str) -> bool:
    """Whether a file, such as that of a stack frame, is one of this package's."""
    return path.startswith(_PREFIX)
