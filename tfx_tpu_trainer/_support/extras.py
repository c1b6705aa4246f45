"""What `pip install tfx-tpu-trainer` does not bring: a module that is missing is named with the extra that has it."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator


class MissingExtraError(ModuleNotFoundError):
    """A part of this package was imported whose requirements are not installed."""


@contextlib.contextmanager
def of_extra(extra: str, *, for_what: str) -> Iterator[None]:
    """Names the extra of what the imports of a block need."""
    try:
        yield
    except ModuleNotFoundError as error:
        # A module of this package is no requirement: where one can't be found, the installation is damaged. A package
        # that lacks a module, such as tensorflow.python.keras, has another version, and no extra brings that.
        package, dot, _ = (error.name or "").partition(".")
        if package == __name__.partition(".")[0] or (dot and _is_installed(package)):
            raise
        # That of a part inside too: the extra of what was asked for brings all of it.
        raise MissingExtraError(
            f"{for_what} needs {error.name}, which is not installed: pip install 'tfx-tpu-trainer[{extra}]'",
            name=error.name,
        ) from None


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False
