"""A user's module that ends the process: an error that names it, never a success."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from typing import NoReturn

from tfx_tpu_trainer._support.messages import is_of_this_package

_FAILED = 1


class ModuleExitedError(RuntimeError):
    """A user's module asked for the end of the process that it was loaded into."""


@contextlib.contextmanager
def exits_are_errors(module: str) -> Iterator[None]:
    """Makes an error of whatever a module does to end the process, while it is in use.

    Exit code 0 tells an orchestrator that all is done. A module that calls `sys.exit(0)` when it is
    imported, in its model_fn or its input_fn, must not say so: nothing was trained or checked.

    `SystemExit` becomes a `ModuleExitedError`, whatever its code. `os._exit` ends a process at once
    and can't be taken back, so `os._exit(0)` prints the same line and ends with code 1. Processes
    that the module forks end as they like, and so does this package, whose helpers end with their
    chief. `KeyboardInterrupt` passes, as does the stop by SIGTERM: they are an operator's.

    Args:
        module: What the module is called in the message.

    Yields:
        Nothing.

    Raises:
        ModuleExitedError: The module raised SystemExit.
    """
    process, exit_now = os.getpid(), os._exit

    def _exit(status: int) -> NoReturn:
        caller = traceback.extract_stack(limit=2)[0]
        if os.getpid() == process and status == 0 and not is_of_this_package(caller.filename):
            how = _message(module, "os._exit(0)", caller)
            print(f"error: {how}", file=sys.stderr, flush=True)
            status = _FAILED
        exit_now(status)

    os._exit = _exit
    try:
        yield
    except SystemExit as error:
        # Here, since it brings TensorFlow with it.
        from tfx_tpu_trainer.estimator.extending import StoppedBySignal

        if isinstance(error, StoppedBySignal):
            raise
        raised_at = traceback.extract_tb(error.__traceback__)[-1]
        raise ModuleExitedError(
            _message(module, f"SystemExit({error.code!r})", raised_at)
        ) from error
    finally:
        os._exit = exit_now


def _message(module: str, how: str, frame: traceback.FrameSummary) -> str:
    return (
        f"the module {module!r} ended the process by {how} at {frame.filename}:{frame.lineno}; "
        "raise an exception that says what is wrong, or return"
    )
