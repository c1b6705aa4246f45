"""`context.run` without what C++ and child processes print, unless it fails."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from tfx_tpu_trainer.workbench.notebook.tfx_private import InteractiveContext

# What led to a failure is at the end.
_LAST_LINES = 40
_DESCRIPTORS = (1, 2)


def quiet_runs() -> None:
    """Keeps what is written to the file descriptors of stdout and stderr out of the cells that run a component.

    ipykernel shows it in the cell: the wheel that TFX builds of a module file, in some forty lines, and TensorFlow's
    C++ log. What Python prints and logs does not go that way, and is shown as before. After a failure the last lines
    are printed.
    """
    if not _is_quiet():
        InteractiveContext.run = _quietly(InteractiveContext.run)


def loud_runs() -> None:
    """Undoes `quiet_runs`."""
    if _is_quiet():
        InteractiveContext.run = InteractiveContext.run.__wrapped__


def _is_quiet() -> bool:
    return getattr(InteractiveContext.run, "is_quiet", False)


def _quietly(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def quiet(*args: Any, **kwargs: Any) -> Any:
        with tempfile.TemporaryFile() as hidden:
            try:
                with _descriptors_to(hidden.fileno()):
                    return run(*args, **kwargs)
            except BaseException:
                hidden.seek(0)
                lines = hidden.read().decode(errors="replace").splitlines()
                print(*lines[-_LAST_LINES:], sep="\n", file=sys.stderr)
                raise

    quiet.is_quiet = True  # type: ignore[attr-defined]
    return quiet


@contextlib.contextmanager
def _descriptors_to(file: int) -> Iterator[None]:
    kept = [os.dup(descriptor) for descriptor in _DESCRIPTORS]
    try:
        for descriptor in _DESCRIPTORS:
            os.dup2(file, descriptor)
        yield
    finally:
        for copy, descriptor in zip(kept, _DESCRIPTORS, strict=True):
            os.dup2(copy, descriptor)
            os.close(copy)
