"""The tests that cannot run on the newest line of TFX, each with its reason: the table of docs/lines.md."""

import importlib.metadata
import re
from collections.abc import Mapping
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "lines.md"
NEWEST = "1.21"
_ROW = re.compile(r"^\| `(tests/[^`]+)` \| (.+?) \|$", re.MULTILINE)


def rows() -> dict[str, str]:
    """File or test, as pytest names it, to the reason."""
    return dict(_ROW.findall(PAGE.read_text(encoding="utf-8")))


def rows_here() -> dict[str, str]:
    """The rows, where this is the newest line; none on the other."""
    try:
        line = importlib.metadata.version("tfx")
    except importlib.metadata.PackageNotFoundError:
        return {}
    return rows() if line.startswith(f"{NEWEST}.") else {}


def reason(nodeid: str, of: Mapping[str, str]) -> str | None:
    """Returns why a test can't run; None if it can.

    Args:
        nodeid: Its name.
        of: The rows.
    """
    for name, why in of.items():
        if nodeid == name or nodeid.startswith((f"{name}[", f"{name}::")):
            return f"not on TFX {NEWEST}: {why}"
    return None
