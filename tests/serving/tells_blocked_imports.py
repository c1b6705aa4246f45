"""A module that writes down which imports were blocked while it was imported; see test_loading.py."""

import json
import sys
from pathlib import Path

BLOCKED = sorted(name for name, module in sys.modules.items() if module is None)


def main(path: str) -> None:
    Path(path).write_text(json.dumps(BLOCKED), encoding="utf-8")
