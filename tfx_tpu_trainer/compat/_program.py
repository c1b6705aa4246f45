"""Runs a program as `python` does, in this process, repaired on request; explains errors that have one known fix."""

import builtins
import functools
import importlib.machinery
import importlib.util
import io
import os
import re
import runpy
import sys
import traceback
import types
import urllib.error
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tfx_tpu_trainer._support.messages import PACKAGE_FOLDER, printable

# Makes the loader of the program's main file, from the name `__main__` and its path.
MakeLoader = Callable[[str, str], importlib.machinery.SourceFileLoader]

_INTERRUPTED = 130
# Frames of these files are not the program's if they come first.
_RUNNERS = (__file__, runpy.run_module.__code__.co_filename, importlib.util.__file__)
_HERE = os.path.dirname(os.path.abspath(__file__))
_IMPORTERS = tuple(
    os.path.join(_HERE, each)
    for each in ("_installation.py", "_repairs.py", "_tensorflow_names.py")
)


def program_to_run(
    words: Sequence[str],
    *,
    module: str | None = None,
    repair: bool = False,
    packages: Sequence[str] = (),
    shown: bool = False,
) -> Callable[[], int]:
    """Prepares a run of a program in this process, as `python -m tfx_tpu_trainer.compat` runs it.

    It does not install the old names; `install()` does.

    Args:
        words: The program's path and its arguments; the arguments alone with `module`.
        module: A module to run instead of a path. Defaults to `None`.
        repair: Whether its own modules are repaired as they are imported. Defaults to `False`.
        packages: Installed packages to repair as well. Defaults to none.
        shown: Whether the repairs are printed to stderr. Defaults to `False`.

    Returns:
        A function that runs it, and returns its exit code.
    """
    # It imports multiprocessing, and with it any pickle.py next to the program.
    from tfx_tpu_trainer.compat import _repairs

    repairs, make_loader = None, None
    if repair:
        of_module = _repairs.files_of_module
        own = _repairs.files_of_program(words[0]) if module is None else of_module(module)
        roots = [root for package in packages for root in of_module(package).roots]
        repairs = _repairs.repair_imports([*own.roots, *roots], shown=shown)
        make_loader = functools.partial(_repairs.RepairingFileLoader, repairs=repairs)
    _repairs.serve_workers(repairs)
    if module is None:
        return functools.partial(run_file, words[0], words[1:], make_loader=make_loader)
    return functools.partial(run_module, module, words)


def run_file(path: str, arguments: Sequence[str], *, make_loader: MakeLoader | None = None) -> int:
    """Runs a program's file, or a folder or archive with a `__main__.py`."""
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
    """Executes a source file as `__main__`, which stays in `sys.modules` for threads and exit handlers."""
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
        # The top frames are ours and runpy's; as under `python`, a failing program shows only its own.
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
    """Returns why the program never began; `None` if Python's own message is better."""
    if isinstance(error, KeyboardInterrupt | SyntaxError):
        return None
    reason = " ".join(str(error).split()).rstrip(".")
    return (
        f"python -m tfx_tpu_trainer.compat: can't run {sys.argv[0]!r}: {reason}. Give a program's file, a folder "
        "or an archive with a __main__.py, or a module with -m."
    )


def _is_a_runners(file: str) -> bool:
    return file in _RUNNERS or file.startswith((*_IMPORTERS, "<frozen "))


# The traceback of an error at import passes through our finders and loaders, once for each nested import. These frames
# are removed, with the frames of importlib around them, to leave the program's own.
def _without_importing(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """Removes the frames of our finders and loaders, with those of importlib around them."""
    frames: list[types.TracebackType] = []
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if file.startswith(_IMPORTERS):
            while frames and frames[-1].tb_frame.f_code.co_filename.startswith("<frozen importlib"):
                frames.pop()
        elif not (file.startswith("<frozen importlib") and _is_called_by_us(traceback)):
            frames.append(traceback)
        traceback = traceback.tb_next
    # `tb_next` can be set, so the traceback is relinked instead of printed by hand: debuggers and the program's
    # `sys.excepthook` see the same frames.
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
    """Removes the working directory that `python -m` put first on the path."""
    if sys.path and not _safe_path():
        del sys.path[0]
    # Needed if this package was found in it.
    home = str(PACKAGE_FOLDER.parent)
    if home not in map(os.path.abspath, sys.path):
        sys.path.append(home)


def _safe_path() -> bool:
    # Python 3.11 and later, with -P or PYTHONSAFEPATH.
    return bool(getattr(sys.flags, "safe_path", False))


_COMMAND: Final = "python -m tfx_tpu_trainer.compat"
# The modules of TensorFlow's TPUClusterResolver and of ours.
_RESOLVERS: Final = (
    "tpu_cluster_resolver.py",
    os.path.join("estimator", "tpu", "_cluster_resolver.py"),
)

# Packages whose name in the package index differs from their module's.
_PACKAGES: Final = {
    "PIL": "pillow",
    "absl": "absl-py",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "gin": "gin-config",
    "official": "tf-models-official",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "sonnet": '"dm-sonnet<2"',
    "yaml": "pyyaml",
}
# Python 2 modules that 2to3 renames.
_OF_PYTHON_2: Final = (
    "BaseHTTPServer ConfigParser Cookie HTMLParser Queue SimpleHTTPServer SocketServer StringIO "
    "Tkinter UserDict UserList __builtin__ cPickle cStringIO commands cookielib copy_reg "
    "dummy_thread htmlentitydefs httplib robotparser thread urllib2 urlparse xmlrpclib"
)
# Python 3's messages about a Python 2 statement, and the statement.
_SAID_OF_PYTHON_2: Final = re.compile(
    r"Missing parentheses in call to '(print|exec)'|multiple exception types must be parenth|"
    r"leading zeros in decimal integer|inconsistent use of tabs"
)
_WRITTEN_IN_PYTHON_2: Final = re.compile(
    r"""^\s*(print|exec)\s+["'\w]|^\s*except\s+[\w.(), ]+,\s*\w+\s*:|^\s*raise\s+[\w.]+\s*,|"""
    r"""`|<>|\b\d+[lL]\b|\b[uU][rR]["']|(lambda\s*|def\s+\w+\()[^:]*\(\w+\s*,"""
)


def in_one_line(error: BaseException) -> str | None:
    """Explains an error that ended a program if its fix is known."""
    if isinstance(error, SyntaxError):
        words = _python_2(error)
    elif isinstance(error, ModuleNotFoundError):
        words = _missing_module(error)
    elif type(error).__name__ == "DuplicateFlagError":
        told = str(error).partition("  Description")[0].strip()
        words = (
            f"{_place(error)}: {told} Rename the flag, or pass allow_override=True to the second "
            "DEFINE."
        )
    else:
        words = _missing_tpu(error)
    return f"{_COMMAND}: {words}" if words is not None else None


def _python_2(error: SyntaxError) -> str | None:
    text = (error.text or "").strip("\n")
    if not (_SAID_OF_PYTHON_2.search(str(error.msg)) or _WRITTEN_IN_PYTHON_2.search(text)):
        return None
    return (
        f"{_shown(error.filename)}, line {error.lineno}: Python 2 ({text.strip()!r}). Convert the "
        f"program first: 2to3 -w {_shown(error.filename)}"
    )


def _missing_tpu(error: BaseException) -> str | None:
    """Explains a resolver's error: urllib's, Google's clients', or its own."""
    frames = traceback.extract_tb(error.__traceback__)
    resolver = next((i for i, each in enumerate(frames) if each.filename.endswith(_RESOLVERS)), 0)
    if not resolver or isinstance(error, (TypeError, KeyboardInterrupt, SystemExit)):
        return None
    asking = frames[resolver - 1]
    told = str(error).strip().partition("\n")[0].rstrip(".")
    why = (
        "as this machine has no metadata server of Google Cloud"
        if isinstance(error, urllib.error.URLError)
        else f"and the resolver says: {told}"
    )
    return (
        f"{_shown(asking.filename)}, line {asking.lineno}: the TPU that the program names can't be looked up, "
        f"{why}. Run the program in Google Cloud, or on emulated cores (--emulate N), or name no TPU."
    )


def _missing_module(error: ModuleNotFoundError) -> str | None:
    top = (error.name or "").partition(".")[0]
    # If the package exists, installing it is not the fix.
    if not top or not str(error).startswith("No module named") or _is_there(top):
        return None
    if top in _OF_PYTHON_2.split():
        return (
            f"{_place(error)}: {top} is a module of Python 2. Convert the program first: 2to3 -w "
            f"{_file(error)}"
        )
    needs = f"{_place(error)}: the program needs the package {top!r}"
    folder = _folder_above_with(top, error)
    if folder is not None:
        return f"{needs}, which is in {folder}. Add that folder to the path: PYTHONPATH={folder}"
    # A guessed name may belong to any package.
    known = _PACKAGES.get(top)
    install = f"pip install {known}" if known else "install the package that has it"
    return (
        f"{needs}, which is not installed. If it belongs to the program, start the program from "
        f"its own folder or set PYTHONPATH; otherwise {install}"
    )


def _folder_above_with(top: str, error: BaseException) -> str | None:
    """Returns the folder above the failed file that has a module, such as a checkout's root."""
    frame = _last_frame(error)
    parents = Path(frame.filename).resolve().parents if frame is not None else ()
    having = (each for each in parents if (each / top).is_dir() or (each / f"{top}.py").exists())
    return next(map(str, having), None)


def _is_there(top: str) -> bool:
    try:
        return importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        return False


def _place(error: BaseException) -> str:
    frame = _last_frame(error)
    return f"{_shown(frame.filename)}, line {frame.lineno}" if frame is not None else "the program"


def _file(error: BaseException) -> str:
    frame = _last_frame(error)
    return _shown(frame.filename) if frame is not None else "the program"


def _last_frame(error: BaseException) -> traceback.FrameSummary | None:
    """Returns where an error was raised, before the flags' own functions."""
    frames = traceback.extract_tb(error.__traceback__)
    flags = (os.path.join("absl", "flags", ""), os.path.join("platform", "flags.py"))
    return next((each for each in reversed(frames) if not _has(each.filename, flags)), None)


def _has(file: str, parts: Sequence[str]) -> bool:
    return any(part in file for part in parts)


def _shown(file: str | None) -> str:
    """Returns a path relative to the working directory if that is shorter."""
    if not file or not os.path.isabs(file):
        return file or "the program"
    seen = os.path.relpath(file)
    return seen if len(seen) < len(file) and not seen.startswith("..") else file
