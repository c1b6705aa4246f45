"""What programs, pipelines and pages could import before the modules were put in order still imports."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

# `module:name` for what `__all__` and the documentation's listings name, and dotted paths that the
# documentation, compiled pipelines and commands hold. Names are added to it, and never taken away.
NAMES = Path(__file__).with_name("public_names.txt").read_text(encoding="utf-8").split()


def _found(path: str) -> Any:
    """Imports the longest part that is a module, and follows the rest as attributes."""
    parts = path.replace(":", ".").split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError as error:
            if error.name is None or not path.replace(":", ".").startswith(error.name):
                raise
            continue
        for name in parts[count:]:
            found = getattr(found, name)
        return found
    raise AssertionError(path)


def test_every_public_name_is_where_it_was():
    missing = {}
    for name in NAMES:
        try:
            _found(name)
        except AttributeError as error:
            missing[name] = str(error)
    assert missing == {}
