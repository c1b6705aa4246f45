"""Repairs a program's own modules as they are imported, and caches the repaired texts."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import functools
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import linecache
import logging
import multiprocessing.spawn
import os
import sys
import sysconfig
import types
import zipimport
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tfx_tpu_trainer._support.messages import PACKAGE_FOLDER
from tfx_tpu_trainer._support.whole_files import write_whole
from tfx_tpu_trainer.compat._installation import install

_logger = logging.getLogger(__name__)


class Repairs:
    """Repairs the modules of one program, and disables TensorFlow 2's behaviour for it.

    Attributes:
        files: The program's own files: no others are repaired.
        shown: Whether the repairs are printed to stderr.
    """

    def __init__(self, files: OwnFiles, *, shown: bool) -> None:
        self.files = files
        self.shown = shown
        self._tensorflow: int | None = None
        self._texts: dict[str, str] = {}

    def text_to_run(self, path: str, original: str) -> str:
        """Returns a module's text with the doctor's edits, on the original's lines."""
        if path in self._texts:
            return self._texts[path]
        repair = load_repair(original)
        if repair is None:
            repair = _repaired(path, original)
        self._texts[path] = repair.text
        self._note_tensorflow(path, repair.tensorflow)
        if repair.text != original:
            _show_lines(path, repair.text)
            self._show_difference(path, original, repair.text)
        for each in repair.left:
            self._show(f"{path}, to edit by hand: {each}")
        return repair.text

    def _note_tensorflow(self, path: str, version: int | None) -> None:
        """Disables TensorFlow 2's behaviour at the first module that shows the program is for TF 1.

        It does nothing inside a graph, or if the program has disabled eager execution itself.
        """
        if self._tensorflow is not None or version is None:
            return
        self._tensorflow = version
        tensorflow: Any = importlib.import_module("tensorflow")
        if version == 1 and tensorflow.executing_eagerly():
            _disable_v2_behavior(tensorflow)
            self._show(
                f"{path}: a program for TensorFlow 1, so tf.compat.v1.disable_v2_behavior() was "
                "called for it"
            )

    def _show_difference(self, path: str, original: str, text: str) -> None:
        if self.shown:
            lines = difflib.unified_diff(
                original.splitlines(),
                text.splitlines(),
                path,
                f"{path} (as it is run)",
                lineterm="",
            )
            self._show("\n".join(lines))

    def _show(self, text: str) -> None:
        if self.shown:
            print(text, file=sys.stderr, flush=True)


def _disable_v2_behavior(tensorflow: Any) -> None:
    log = tensorflow.get_logger()
    level = log.level
    # Its deprecation warning does not concern a user who did not call it.
    log.setLevel(logging.ERROR)
    try:
        tensorflow.compat.v1.disable_v2_behavior()
    finally:
        log.setLevel(level)


def _repaired(path: str, original: str) -> Repair:
    doctor = importlib.import_module("tfx_tpu_trainer.compat.doctor")
    try:
        found = doctor.repair(original)
    except doctor.NotPythonError:
        # Python's own message, at compilation, is better.
        return Repair(original, None)
    except (Exception, RecursionError) as error:
        _logger.warning("%s runs unrepaired, because the doctor failed on it: %r.", path, error)
        return Repair(original, None)
    text = found.text if found.text == original else keep_lines(original, found.text)
    left = (each for each in found.left if each.verdict is doctor.Verdict.EDIT)
    told = tuple(f"line {each.line}, {each.name}: {each.edit}" for each in left)
    repair = Repair(text, found.tensorflow, told)
    keep_repair(original, repair)
    return repair


_DOCTOR: Final = Path(__file__).resolve().parent / "doctor"


@dataclasses.dataclass(frozen=True)
class Repair:
    """A program's text with its repairs.

    Attributes:
        text: The text, repaired.
        tensorflow: The version of TensorFlow that the program was written for; `None` if its names do not show it.
        left: The edits to make by hand, one text each: line, name and advice.
    """

    text: str
    tensorflow: int | None
    left: tuple[str, ...] = ()


def load_repair(original: str) -> Repair | None:
    """Returns a cached repair of a text."""
    try:
        kept = json.loads(_file(original).read_bytes())
        # The digest covers the values, so an edited or damaged file counts as missing: the text that runs in a
        # program's place must be exactly what the doctor wrote.
        repair = Repair(kept["text"], kept["tensorflow"], tuple(kept["left"]))
        return repair if kept["digest"] == _digest_of(repair) else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def keep_repair(original: str, repair: Repair) -> None:
    """Caches a repair; does nothing if the cache is not writable."""
    with contextlib.suppress(OSError, ValueError):
        values = {**dataclasses.asdict(repair), "digest": _digest_of(repair)}
        # Programs that start at the same time see the whole file, or none.
        write_whole(_file(original), json.dumps(values))


def cache_folder() -> Path:
    """Returns the folder of cached repairs, below XDG_CACHE_HOME or `~/.cache`."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "tfx_tpu_trainer" / "repairs"


def _file(original: str) -> Path:
    return cache_folder() / f"{_digest(_makers_digest() + original)}.json"


def _digest_of(repair: Repair) -> str:
    return _digest(json.dumps(dataclasses.asdict(repair)))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@functools.cache
def _makers_digest() -> str:
    """Returns a digest of the modules that make repairs, since other versions may repair differently."""
    digest = hashlib.sha256()
    for file in (Path(__file__), *sorted(_DOCTOR.rglob("*.py"))):
        digest.update(file.read_bytes())
    return digest.hexdigest()


_texts: Final[dict[str, str]] = {}
_read_from_disk: Final = linecache.updatecache


def _show_lines(path: str, text: str) -> None:
    """Gives a repaired text to `linecache` in place of the file's.

    AutoGraph makes `linecache` read a file again before it compiles one of its functions, so an entry in
    `linecache.cache` alone is not enough.
    """
    _texts[path] = text
    vars(linecache)["updatecache"] = _updatecache
    _updatecache(path)


def _updatecache(filename: str, module_globals: dict[str, Any] | None = None) -> list[str]:
    if filename not in _texts:
        return _read_from_disk(filename, module_globals)
    text = _texts[filename]
    lines = text.splitlines(keepends=True)
    # Without a modification time it is not compared with the file.
    linecache.cache[filename] = (len(text), None, lines, filename)
    return lines


_IMPORTS: Final = ("import ", "from ")


# Tracebacks and debuggers name lines of the original file, so line 90 of the repaired text must be line 90 of the
# file. A diff gives the changed blocks. A block that grew appends its surplus statements to the previous ones with `;`,
# and a block that shrank is padded with empty lines. One of two joined statements is an import. Example: `import b` is
# added between `import a` and `x = 1`; the first line becomes `import a; import b`, and `x = 1` stays on line 2. If the
# lines can't be aligned, or the result means something else, the repaired text is used unchanged.
def keep_lines(original: str, repaired: str) -> str:
    """Lays out a repaired program on the original's lines.

    Tracebacks, breakpoints and warnings then name the file's lines. An added import joins the line before or after it,
    and a removed line leaves an empty one.
    """
    old, new = original.split("\n"), repaired.split("\n")
    laid: list[str] = []
    # With autojunk, frequent lines of a file with 200 lines or more do not align the texts, and unchanged blocks count
    # as changed.
    opcodes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    for _, first, end, new_first, new_end in opcodes:
        for number, line in enumerate(new[new_first:new_end]):
            # Whether the block has a line too many, or the text above it has.
            surplus = number >= end - first or len(laid) > first + number
            if surplus and not line.strip():
                continue
            joined = _join(laid[-1], line) if surplus and laid else None
            if joined is None:
                laid.append(line)
            else:
                laid[-1] = joined
        laid += [""] * (end - len(laid))
    laid_out = "\n".join(laid)
    return laid_out if len(laid) == len(old) and _means_the_same(laid_out, repaired) else repaired


def _join(before: str, line: str) -> str | None:
    """Appends a statement to the previous line if one of them is a plain import."""
    if not any(each.lstrip().startswith(_IMPORTS) for each in (before, line)):
        return None
    statement = line.strip()
    code, mark, comment = before.partition("#")
    if not code.strip() or not statement or _indent(before) != _indent(line):
        return None
    return f"{code.rstrip()}; {statement}" + (f"  {mark}{comment}" if mark else "")


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _means_the_same(text: str, other: str) -> bool:
    try:
        return ast.dump(ast.parse(text)) == ast.dump(ast.parse(other))
    except (SyntaxError, ValueError, RecursionError):
        return False


_INSTALLED: Final = ("site-packages", "dist-packages")


class OwnFiles:
    """The files in a program's folders, except installed packages.

    Attributes:
        roots: The folders, archives or single files, without links.
    """

    def __init__(self, roots: Sequence[str]) -> None:
        self.roots = tuple(os.path.realpath(root) for root in roots)

    def __contains__(self, path: str) -> bool:
        real = Path(os.path.realpath(path))
        if real.is_relative_to(PACKAGE_FOLDER.resolve()):
            return False
        return any(
            real.is_relative_to(root) and not _is_installed(real, Path(root)) for root in self.roots
        )


def files_of_program(path: str) -> OwnFiles:
    """Returns the files of a program that is run by path."""
    real = os.path.realpath(path)
    if os.path.isdir(real) or real.endswith((".zip", ".pyz", ".egg")):
        return OwnFiles([real])
    return OwnFiles([_folder_or_file(real)])


def files_of_module(name: str) -> OwnFiles:
    """Returns the files of a program that is run by module name."""
    spec = importlib.util.find_spec(name.partition(".")[0])
    if spec is None:
        return OwnFiles([])
    if spec.submodule_search_locations is not None:
        return OwnFiles(list(spec.submodule_search_locations))
    is_file = isinstance(spec.loader, importlib.machinery.SourceFileLoader)
    return OwnFiles([_folder_or_file(os.path.realpath(spec.origin or ""))] if is_file else [])


def _folder_or_file(file: str) -> str:
    """Returns the folder around a file and its package; the file itself if unrelated files are next to it."""
    folder = Path(file).parent
    while (folder / "__init__.py").exists():
        folder = folder.parent
    libraries = {Path(os.path.realpath(sysconfig.get_path(each))) for each in _LIBRARIES}
    return file if folder in libraries or folder.name in _INSTALLED else str(folder)


_LIBRARIES: Final = ("stdlib", "platstdlib", "purelib", "platlib")


def _is_installed(file: Path, root: Path) -> bool:
    """Returns whether a file below a program's folder belongs to an environment or an installed package."""
    # Only folders between the two count: a program that is itself below `site-packages` is the user's own when run by
    # path.
    between = file.relative_to(root).parts[:-1]
    folders = [root.joinpath(*between[: number + 1]) for number in range(len(between))]
    return any(each.name in _INSTALLED or (each / "pyvenv.cfg").exists() for each in folders)


class RepairingFinder(importlib.abc.MetaPathFinder):
    """Finds the modules of one program, and leaves all others to the next finder."""

    def __init__(self, repairs: Repairs) -> None:
        self._repairs = repairs

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds a module of the program, with a loader that repairs it."""
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or not spec.origin or spec.origin not in self._repairs.files:
            return None
        loader: Any = spec.loader
        # Exactly these two types: a subclass is another tool's loader, such as one that rewrites `assert`, whose
        # changes would be lost. Its modules run unrepaired.
        if type(loader) is importlib.machinery.SourceFileLoader:
            spec.loader = RepairingFileLoader(fullname, spec.origin, self._repairs)
        elif type(loader) is zipimport.zipimporter:
            place = os.path.join(loader.archive, loader.prefix)
            repairing: Any = _RepairingArchiveLoader(place, self._repairs)
            spec.loader = repairing
        else:
            return None
        return spec


def repair_imports(roots: Sequence[str], *, shown: bool = False) -> Repairs:
    """Repairs the modules below some folders as they are imported."""
    repairs = Repairs(OwnFiles(roots), shown=shown)
    sys.meta_path.insert(0, RepairingFinder(repairs))
    return repairs


class RepairingFileLoader(importlib.machinery.SourceFileLoader):
    """Loads a repaired source file, without reading or writing compiled code."""

    def __init__(self, fullname: str, path: str, repairs: Repairs) -> None:
        super().__init__(fullname, path)
        self._repairs = repairs

    def get_source(self, fullname: str) -> str | None:
        """Returns the text that runs."""
        source = super().get_source(fullname)
        return source and self._repairs.text_to_run(self.path, source)

    def get_code(self, fullname: str) -> types.CodeType | None:
        """Compiles the text that runs."""
        try:
            source = self.get_source(fullname)
        except (ImportError, UnicodeDecodeError, SyntaxError):
            # Invalid text in its declared encoding: Python's own message is better.
            return super().get_code(fullname)
        # Otherwise the program would inherit this module's `from __future__ import annotations`.
        return compile(source or "", self.path, "exec", dont_inherit=True)


class _RepairingArchiveLoader(zipimport.zipimporter):
    """Loads a repaired module from an archive."""

    def __init__(self, place: str, repairs: Repairs) -> None:
        super().__init__(place)
        self._repairs = repairs

    def get_source(self, fullname: str) -> str | None:
        """Returns the text that runs."""
        source = super().get_source(fullname)
        return source and self._repairs.text_to_run(self.get_filename(fullname), source)

    def get_code(self, fullname: str) -> types.CodeType:
        """Compiles the text that runs."""
        source = self.get_source(fullname)
        if source is None:
            return super().get_code(fullname)
        return compile(source, self.get_filename(fullname), "exec", dont_inherit=True)


_KEY = "tfx_tpu_trainer.compat"


def serve_workers(repairs: Repairs | None) -> None:
    """Prepares processes of the start methods "spawn" and "forkserver" like this one.

    Forked processes inherit everything. Others unpickle their start data before they import the program, and one of
    its values makes the installation.
    """
    original: Callable[[str], dict[str, Any]] = multiprocessing.spawn.get_preparation_data
    start = _Start(None if repairs is None else repairs.files.roots)

    def get_preparation_data(name: str) -> dict[str, Any]:
        # multiprocessing pickles this dict for the new process, which unpickles all of it before acting on the keys
        # that it knows. The installation therefore precedes the import of the program's file, and `_KEY` itself is
        # ignored.
        data = original(name)
        module = _name_of(data.get("init_main_from_path"))
        if repairs is not None and module is not None:
            # Imported by name instead, the program's file is repaired.
            del data["init_main_from_path"]
            data["init_main_from_name"] = module
        return {_KEY: start, **data}

    vars(multiprocessing.spawn)["get_preparation_data"] = get_preparation_data


@dataclasses.dataclass(frozen=True)
class _Start:
    """A worker's installation, which happens when it is unpickled."""

    roots: Sequence[str] | None

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Any, ...]]:
        # Unpickling calls this function; its result, `None`, becomes the worker's value.
        return start_worker, (self.roots,)


def start_worker(roots: Sequence[str] | None) -> None:
    """Installs in a worker process."""
    install()
    serve_workers(None if roots is None else repair_imports(roots))


def _name_of(path: str | None) -> str | None:
    """Returns the module name that finds a program's file, if there is one."""
    stem, suffix = os.path.splitext(os.path.basename(path or ""))
    if path is None or suffix != ".py" or not stem.isidentifier():
        return None
    spec = importlib.machinery.PathFinder.find_spec(stem)
    origin = spec.origin if spec is not None else None
    found = origin is not None and os.path.realpath(origin) == os.path.realpath(path)
    return stem if found else None
