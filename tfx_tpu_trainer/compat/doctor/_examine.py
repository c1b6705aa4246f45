"""Finds and reads the files of programs, examines one program, and makes its mechanical edits."""

import dataclasses
import io
import itertools
import os
import re
import stat
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tfx_tpu_trainer._support.whole_files import write_whole
from tfx_tpu_trainer.compat.doctor._findings import (
    Finding,
    apply_edits,
    compatible_edits,
    told_once,
)
from tfx_tpu_trainer.compat.doctor._name_findings import NameFindings
from tfx_tpu_trainer.compat.doctor._reading import read_program
from tfx_tpu_trainer.compat.doctor._rewriting import Spelling
from tfx_tpu_trainer.compat.doctor.checks import (
    Context,
    estimators,
    functions,
    keras,
    older_versions,
)

_CHECKS: Final = (
    older_versions.check_dimensions,
    estimators.check_exports,
    functions.check_input_fns,
    keras.check_keras2,
    estimators.check_legacy_modules,
    functions.check_model_fns,
    older_versions.check_numpy_names,
    functions.check_optimizers,
    older_versions.check_abstract_collections,
    older_versions.check_python2,
    estimators.check_resolvers,
    estimators.check_schedules,
    older_versions.check_sessions,
    estimators.check_tpu_estimators,
)
# Parsing is slow, and most files have nothing to do with estimators.
_CONCERNED: Final = re.compile(
    r"\b(tensorflow\w*|tfx\w*)\b|^\s*(import|from) keras\b", re.MULTILINE
)
_NUMPY: Final = re.compile(r"\bimport numpy\b")
_OLD_NUMPY: Final = re.compile(
    r"\b(?:np|numpy)\.(" + "|".join(map(re.escape, older_versions.NUMPY_NAMES)) + r")\b"
)


NOTEBOOK: Final = ".ipynb"
"""The suffix of notebooks."""
# Ten seconds of reading.
_LARGEST: Final = 10_000_000
_SKIPPED: Final = {"__pycache__", "node_modules", "site-packages", "build", "dist"}


class UnreadableError(ValueError):
    """A path or file that can't be examined; the message has the reason and the fix."""


def python_files(path: str | os.PathLike[str]) -> list[Path]:
    """Lists the files to examine.

    Args:
        path: A file of any name, or a folder, for all `.py` and `.ipynb` files below it, except hidden ones and those
            in hidden folders, environments and build folders.

    Returns:
        The files, sorted.

    Raises:
        UnreadableError: If the path does not exist, or a folder has no file to examine.
    """
    root = Path(path)
    if os.fspath(path) and (root.is_symlink() or root.exists()) and not root.is_dir():
        return [root]
    if not os.fspath(path) or not root.is_dir():
        raise UnreadableError(
            f"{os.fspath(path)!r}: no such file or folder. Give a .py file, a notebook, or a folder of them."
        )
    found: list[Path] = []
    unlisted: list[OSError] = []
    for folder, names, files in os.walk(root, onerror=unlisted.append):
        names[:] = sorted(name for name in names if not _is_skipped(Path(folder) / name))
        # A hidden file is not a module: editors and macOS leave `.#train.py` and `._train.py`.
        found += [
            Path(folder) / name
            for name in files
            if name.endswith((".py", NOTEBOOK)) and not name.startswith(".")
        ]
    # A folder that can't be listed counts as an unreadable file.
    found += [Path(error.filename) for error in unlisted]
    if not found:
        raise UnreadableError(
            f"{root}: this folder has no .py file and no notebook. Give one that contains a "
            "program."
        )
    return sorted(found)


def _is_skipped(folder: Path) -> bool:
    hidden = folder.name.startswith(".")
    return hidden or folder.name in _SKIPPED or os.path.exists(folder / "pyvenv.cfg")


@dataclasses.dataclass(frozen=True)
class Source:
    """A Python file that was read."""

    path: Path
    text: str  # with its own line ends
    encoding: str  # by which Python reads it; `"utf-8-sig"` after a byte order mark


def read_source(path: Path) -> Source:
    """Reads a file as Python would; raises `UnreadableError` if it is not text in its declared encoding."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise UnreadableError(f"{path}: a folder that can't be listed.")
        if not stat.S_ISREG(status.st_mode):
            # A pipe would wait for its writer forever, and /dev/zero never ends.
            raise UnreadableError(f"{path}: a pipe, a device or a socket, not a text file.")
        if status.st_size > _LARGEST:
            raise UnreadableError(
                f"{path}: {status.st_size:,} bytes; files of more than {_LARGEST:,} are data, not "
                "programs, and are not read."
            )
        content = path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
        # Codecs such as unicode_escape make surrogates, which no text has.
        text.encode("utf-8")
        return Source(path, text, encoding)
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror}.") from None
    # LookupError: "hex" and "rot13" are not text codecs.
    except (SyntaxError, UnicodeError, LookupError) as error:
        raise UnreadableError(f"{path}: not read as text: {error}.") from None


def write_source(source: Source) -> None:
    """Replaces a file atomically: a reader sees the old text or the new one.

    Args:
        source: The new text. Links and permissions are kept.

    Raises:
        UnreadableError: If it can't be written.
    """
    target = Path(os.path.realpath(source.path))
    try:
        write_whole(target, source.text.encode(source.encoding))
    except OSError as error:
        raise UnreadableError(f"{source.path}: {error.strerror}; it was not changed.") from None


@dataclasses.dataclass(frozen=True)
class Examined:
    """The findings of a program.

    Attributes:
        findings: In the order of their lines.
        tensorflow: The version of TensorFlow that it was written for, 1 or 2, by the names that it
            takes from `tf`; `None` if they are in both.
    """

    findings: list[Finding]
    tensorflow: int | None


def examine(text: str) -> list[Finding]:
    r"""Reports what a program uses, and whether it still works.

    Examples:
        >>> from tfx_tpu_trainer.compat.doctor import examine
        >>> program = "from tensorflow.contrib import tpu\nestimator = tpu.TPUEstimator\n"
        >>> (finding,) = examine(program)
        >>> finding.line, finding.name, finding.fixable
        (1, 'tf.contrib.tpu', True)

    Args:
        text: The program. It is parsed, and never run.

    Returns:
        The findings, in the order of their lines; none if it mentions neither TensorFlow nor TFX.

    Raises:
        NotPythonError: If it is not Python 3; the message names the line.
    """
    return look_at(text).findings


def look_at(text: str) -> Examined:
    """Examines a program as `examine` does, and returns which TensorFlow it is for."""
    examined = found_in(text)
    return dataclasses.replace(examined, findings=told_once(examined.findings))


def found_in(text: str) -> Examined:
    """Examines a program as `look_at` does, with the place of each finding."""
    if not (_CONCERNED.search(text) or (_NUMPY.search(text) and _OLD_NUMPY.search(text))):
        return Examined([], None)
    program = read_program(text)
    copied = estimators.copied_estimator(program)
    if copied is not None:
        return Examined([copied], 1)
    spelling = Spelling(program)
    context = Context(program, spelling)
    replaced = keras.replaced_functions(context)
    checked = itertools.chain.from_iterable(check(context) for check in _CHECKS)
    findings = [
        each
        for each in (*NameFindings(program, spelling).all(), *checked)
        if not any(function.has(each) for function in replaced)
    ]
    findings += [each.finding for each in replaced]
    return Examined(findings, 1 if spelling.is_tf1 else 2 if spelling.is_tf2 else None)


# An edit may allow another one inside the new text; calls are hardly nested this deeply.
_ROUNDS: Final = 20


@dataclasses.dataclass(frozen=True)
class Repaired:
    """A program with its mechanical edits.

    Attributes:
        text: The program.
        made: The findings whose edits were made.
        left: The findings on the new text.
        found: The findings on the original text.
        tensorflow: The version of TensorFlow that the program was written for, 1 or 2; `None` if
            its names are in both.
    """

    text: str
    made: tuple[Finding, ...]
    left: tuple[Finding, ...]
    found: tuple[Finding, ...] = ()
    tensorflow: int | None = None


def repair(text: str) -> Repaired:
    r"""Makes the edits that need no judgement; the rest of the program is not changed.

    Examples:
        >>> from tfx_tpu_trainer.compat.doctor import repair
        >>> repaired = repair("from tensorflow.contrib import tpu\n")
        >>> print(repaired.text)
        from tfx_tpu_trainer.estimator import tpu
        <BLANKLINE>

    Args:
        text: The program.

    Returns:
        The program with the edits.

    Raises:
        NotPythonError: If it is not Python 3; the message names the line.
    """
    return repair_with(look_at, text)


def repair_with(look: Callable[[str], Examined], text: str) -> Repaired:
    """Makes the edits of the findings that a function returns."""
    # Edits may overlap. In `f(tf.contrib.x.y(tf.placeholder(...)))` the edit of the outer call contains the inner name,
    # and only the longer of two overlapping edits is made. So each round makes the edits that fit together and examines
    # the new text, until no edit is left. A finding counts as made in the round that made all of its edits.
    made: list[Finding] = []
    examined = first = look(text)
    for _ in range(_ROUNDS):
        fixable = [each for each in examined.findings if each.fixable]
        if not fixable:
            break
        edits = compatible_edits(edit for each in fixable for edit in each.edits)
        made += [each for each in fixable if edits.issuperset(each.edits)]
        text = apply_edits(text, edits)
        examined = look(text)
    return Repaired(
        text, tuple(made), tuple(examined.findings), tuple(first.findings), first.tensorflow
    )
