"""The JSON files that options of `tfx-tpu-trainer preflight` name."""

from __future__ import annotations

import json
from typing import Any


def read_json_file(option: str, path: str) -> Any:
    """Reads the file of an option.

    Args:
        option: The option, such as `"--price"`, for messages.
        path: The file.

    Returns:
        The JSON value; what it must hold is for the caller to check.

    Raises:
        ValueError: The file can't be read, or is not valid JSON; names the option and the file.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise ValueError(f"{option} {path} can't be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{option} {path} is not valid JSON: {error}.") from None
