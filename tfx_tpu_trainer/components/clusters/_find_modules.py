"""Finds modules and package versions without importing them, since importing TFX would exceed a check's time limit.

A separate program, `python find_modules.py MODULE... PACKAGE==LINE...`, which needs only Python: an image's Python
reads it from standard input, since the modules that it looks for may be missing there.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys


def is_there(module: str) -> bool:
    """Returns whether a module's file is on this Python's path."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or not rest:
        return spec is not None
    paths = [os.path.join(folder, *rest) for folder in spec.submodule_search_locations or []]
    return any(
        os.path.exists(path + ".py") or os.path.exists(os.path.join(path, "__init__.py"))
        for path in paths
    )


def other_line(wanted: str) -> str | None:
    """Describes the mismatch of a package's version; None if there is none."""
    package, _, line = wanted.partition("==")
    try:
        found = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return f"it lacks {package}"
    if found == line or found.startswith(line + "."):
        return None
    return f"it has {package} {found}, but the pipeline was compiled with {package} {line}"


def main(wanted: list[str]) -> int | str:
    """Returns 0, or a message that names missing modules or a package of another line."""
    missing = [each for each in wanted if "==" not in each and not is_there(each)]
    if missing:
        return f"it lacks {', '.join(missing)}"
    others = [other_line(each) for each in wanted if "==" in each]
    return next((said for said in others if said), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
