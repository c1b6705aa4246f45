"""The JSON files that options of `tfx-tpu-trainer preflight` name."""

from __future__ import annotations

import json
from typing import Any


def read_json_file(option: str, path: str) -> Any:
    """Reads the file of an option."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise ValueError(f"{option} {path} can't be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{option} {path} is not valid JSON: {error}.") from None
