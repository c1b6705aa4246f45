"""Lists, reads and writes the Python files of a path."""

import dataclasses
import io
import os
import stat
import tokenize
from pathlib import Path
from typing import Final

from tfx_tpu_trainer._support.whole_files import write_whole

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
        UnreadableError: If the path does not exist, or a folder has no such file.
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
        # A hidden file is no module: editors and macOS leave `.#train.py` and `._train.py`.
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
    """Reads a file as Python would; raises `UnreadableError` where it is not text in its declared encoding."""
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
    # LookupError: "hex" and "rot13" are no text codecs.
    except (SyntaxError, UnicodeError, LookupError) as error:
        raise UnreadableError(f"{path}: not read as text: {error}.") from None


def write_source(source: Source) -> None:
    """Replaces a file atomically: a reader sees the old text or the new one.

    Args:
        source: The new text. A link stays one, and permissions stay as they are.

    Raises:
        UnreadableError: If it can't be written.
    """
    target = Path(os.path.realpath(source.path))
    try:
        write_whole(target, source.text.encode(source.encoding))
    except OSError as error:
        raise UnreadableError(f"{source.path}: {error.strerror}; it was not changed.") from None
