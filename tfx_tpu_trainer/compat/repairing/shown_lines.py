"""The lines of repaired files, for all that shows or reads source: tracebacks, inspect, AutoGraph."""

from __future__ import annotations

import linecache
from typing import Any, Final

_texts: Final[dict[str, str]] = {}
_read_from_disk: Final = linecache.updatecache


def show(path: str, text: str) -> None:
    """Lets `linecache` have a repaired text instead of its file's.

    AutoGraph asks `linecache` to read a file again before it compiles a function of it: what is in `linecache.cache`
    alone would not do.
    """
    _texts[path] = text
    vars(linecache)["updatecache"] = _updatecache
    _updatecache(path)


def _updatecache(filename: str, module_globals: dict[str, Any] | None = None) -> list[str]:
    if filename not in _texts:
        return _read_from_disk(filename, module_globals)
    text = _texts[filename]
    lines = text.splitlines(keepends=True)
    # Without a time of change it is not compared with the file.
    linecache.cache[filename] = (len(text), None, lines, filename)
    return lines
