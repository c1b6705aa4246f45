"""Runs a program as `python` does, in this process."""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import io
import os
import runpy
import sys
import types
from collections.abc import Callable, Sequence

_INTERRUPTED = 130
# Frames of these are not the program's, where they come first.
_RUNNERS = (__file__, runpy.run_module.__code__.co_filename, importlib.util.__file__)


def run_file(path: str, arguments: Sequence[str]) -> int:
    """Runs a program's file, or a folder or archive that has a `__main__.py`.

    Args:
        path: The program.
        arguments: Its arguments.

    Returns:
        0; 1 where the program ended with an exception, which was shown.

    Raises:
        SystemExit: As the program raised it.
    """
    sys.argv = [path, *arguments]
    _drop_first_folder()
    if os.path.isdir(path) or _is_compiled(path):
        return _run(lambda: runpy.run_path(path, run_name="__main__"))
    if not _safe_path():
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    return _run(lambda: _execute(os.path.abspath(path)))


def run_module(name: str, arguments: Sequence[str]) -> int:
    """Runs a module, as `python -m` does.

    Args:
        name: The module, or a package that has a `__main__`.
        arguments: Its arguments.

    Returns:
        As `run_file`.

    Raises:
        SystemExit: As the program raised it.
    """
    sys.argv = [name, *arguments]
    return _run(lambda: runpy.run_module(name, run_name="__main__", alter_sys=True))


def _execute(path: str) -> None:
    """Runs a source file as `__main__`, which it stays: threads and exit handlers look there."""
    main = types.ModuleType("__main__")
    vars(main).update(
        __file__=path,
        __builtins__=builtins,
        __loader__=importlib.machinery.SourceFileLoader("__main__", path),
    )
    sys.modules["__main__"] = main
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, vars(main))


def _run(program: Callable[[], object]) -> int:
    try:
        program()
    except SystemExit:
        raise
    except BaseException as error:
        traceback = error.__traceback__
        while traceback is not None and _is_a_runners(traceback.tb_frame.f_code.co_filename):
            traceback = traceback.tb_next
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _is_a_runners(file: str) -> bool:
    return file in _RUNNERS or file.startswith("<frozen ")


def _is_compiled(path: str) -> bool:
    with open(path, "rb") as file:
        return b"\0" in file.read(64)


def _drop_first_folder() -> None:
    """Takes away what `python -m` put first: the folder that it was called in."""
    if sys.path and not _safe_path():
        del sys.path[0]
    # Where this package was found in that folder, it is still needed.
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if home not in map(os.path.abspath, sys.path):
        sys.path.append(home)


def _safe_path() -> bool:
    # Python 3.11 and later, with -P or PYTHONSAFEPATH.
    return bool(getattr(sys.flags, "safe_path", False))
