"""What `pip install tfx-tpu-trainer` does not bring: a module that is missing is named with the extra that has it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class MissingExtraError(ModuleNotFoundError):
    """A part of this package was imported whose requirements are not installed."""


@contextlib.contextmanager
def of_extra(extra: str, *, for_what: str) -> Iterator[None]:
    """Names the extra of what the imports of a block need.

    Args:
        extra: Its name in setup.py.
        for_what: What is imported, as the beginning of a sentence.

    Yields:
        Nothing.

    Raises:
        MissingExtraError: In place of a ModuleNotFoundError, with the `pip install` that mends it. One about a
            module of this package is left as it is.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        # A module of this package is no requirement: where one can't be found, the installation is damaged.
        if (error.name or "").partition(".")[0] == __name__.partition(".")[0]:
            raise
        # That of a part inside too: the extra of what was asked for brings all of it.
        raise MissingExtraError(
            f"{for_what} needs {error.name}, which is not installed: pip install 'tfx-tpu-trainer[{extra}]'",
            name=error.name,
        ) from None
