"""Looks for modules without importing them: an import of TFX takes longer than a check may.

A program of its own, `python find_modules.py MODULE...`, which needs nothing but Python: an image's
Python is given it as its input, since what it looks for may be missing there.
"""

from __future__ import annotations

import importlib.util
import os
import sys


def is_there(module: str) -> bool:
    """Whether a module's file exists on this Python's path.

    Args:
        module: Its import path.
    """
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or not rest:
        return spec is not None
    paths = [os.path.join(folder, *rest) for folder in spec.submodule_search_locations or []]
    return any(
        os.path.exists(path + ".py") or os.path.exists(os.path.join(path, "__init__.py"))
        for path in paths
    )


def main(modules: list[str]) -> int | str:
    """Returns 0, or names the modules that are missing."""
    missing = [module for module in modules if not is_there(module)]
    return f"it lacks {', '.join(missing)}" if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
