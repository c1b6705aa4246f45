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
from typing import Any

from tfx_tpu_trainer._support.messages import PACKAGE_FOLDER, printable
from tfx_tpu_trainer.compat._program_errors import in_one_line

# Makes the loader of the program's own file: called with the name `__main__` and its path.
MakeLoader = Callable[[str, str], importlib.machinery.SourceFileLoader]

_INTERRUPTED = 130
# Frames of these are not the program's, where they come first.
_RUNNERS = (__file__, runpy.run_module.__code__.co_filename, importlib.util.__file__)
_HERE = os.path.dirname(os.path.abspath(__file__))
_IMPORTERS = tuple(
    os.path.join(_HERE, each)
    for each in ("contrib_names.py", "import_watcher.py", os.path.join("repairing", ""))
)


def run_file(path: str, arguments: Sequence[str], *, make_loader: MakeLoader | None = None) -> int:
    """Runs a program's file, or a folder or archive that has a `__main__.py`."""
    sys.argv = [path, *arguments]
    _drop_first_folder()
    if os.path.isdir(path) or _is_compiled(path):
        return _run(lambda: runpy.run_path(path, run_name="__main__"))
    if not _safe_path():
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    return _run(lambda: _execute(os.path.abspath(path), make_loader))


def run_module(name: str, arguments: Sequence[str]) -> int:
    """Runs a module, as `python -m` does."""
    sys.argv = [name, *arguments]
    return _run(lambda: runpy.run_module(name, run_name="__main__", alter_sys=True))


def _execute(path: str, make_loader: MakeLoader | None) -> None:
    """Runs a source file as `__main__`, which it stays: threads and exit handlers look there."""
    loader = (make_loader or importlib.machinery.SourceFileLoader)("__main__", path)
    main = types.ModuleType("__main__")
    vars(main).update(__file__=path, __builtins__=builtins, __loader__=loader)
    sys.modules["__main__"] = main
    if make_loader is not None:
        code: Any = loader.get_code("__main__")
    else:
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
        traceback = _without_importing(traceback)
        error = error.with_traceback(traceback)
        words = in_one_line(error) if sys.excepthook is sys.__excepthook__ else None
        if traceback is None and words is None:
            words = _never_began(error)
        if words is not None:
            print(printable(words), file=sys.stderr)
        else:
            sys.excepthook(type(error), error, traceback)
        return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _never_began(error: BaseException) -> str | None:
    """Returns what to say where nothing of the program has run; `None` where Python says it better."""
    if isinstance(error, KeyboardInterrupt | SyntaxError):
        return None
    reason = " ".join(str(error).split()).rstrip(".")
    return (
        f"python -m tfx_tpu_trainer.compat: can't run {sys.argv[0]!r}: {reason}. Give a program's file, a folder "
        "or an archive with a __main__.py, or a module with -m."
    )


def _is_a_runners(file: str) -> bool:
    return file in _RUNNERS or file.startswith((*_IMPORTERS, "<frozen "))


def _without_importing(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """Takes out the frames of our finders and loaders, with those of importlib that call them."""
    frames: list[types.TracebackType] = []
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if file.startswith(_IMPORTERS):
            while frames and frames[-1].tb_frame.f_code.co_filename.startswith("<frozen importlib"):
                frames.pop()
        elif not (file.startswith("<frozen importlib") and _is_called_by_us(traceback)):
            frames.append(traceback)
        traceback = traceback.tb_next
    for frame, following in zip(frames, [*frames[1:], None]):
        frame.tb_next = following
    return frames[0] if frames else None


def _is_called_by_us(traceback: types.TracebackType) -> bool:
    caller = traceback.tb_frame.f_back
    return caller is not None and caller.f_code.co_filename.startswith(_IMPORTERS)


def _is_compiled(path: str) -> bool:
    with open(path, "rb") as file:
        return b"\0" in file.read(64)


def _drop_first_folder() -> None:
    """Takes away what `python -m` put first: the folder that it was called in."""
    if sys.path and not _safe_path():
        del sys.path[0]
    # Where this package was found in that folder, it is still needed.
    home = str(PACKAGE_FOLDER.parent)
    if home not in map(os.path.abspath, sys.path):
        sys.path.append(home)


def _safe_path() -> bool:
    # Python 3.11 and later, with -P or PYTHONSAFEPATH.
    return bool(getattr(sys.flags, "safe_path", False))
