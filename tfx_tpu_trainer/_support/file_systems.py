"""Classifies paths by file system, and what each file system supports.

TensorFlow opens a path by its scheme: local ones have none or `file://`, `gs://` is built in, and packages such as
tensorflow-io add others.
"""

import os
import re
from typing import Any, Final

_LOCAL: Final = ("", "file")
# All others are treated as object stores, where a folder is only a prefix of file names.
_RENAMES_FOLDERS: Final = (*_LOCAL, "hdfs", "viewfs")

# TensorFlow writes a checkpoint by its name, but reads it by a pattern.
_PATTERN: Final = re.compile(r"[*?\\]|\[.+\]")


def scheme_of(path: str | os.PathLike[str]) -> str:
    """Returns a path's scheme, such as `gs`; empty for a path without one."""
    scheme, separator, _ = os.fsdecode(path).partition("://")
    return scheme if separator else ""


def is_local(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path is on this machine's file system, including mounted shares."""
    return scheme_of(path) in _LOCAL


def local_path(path: str | os.PathLike[str]) -> str:
    """Returns a local path without `file://`, for Python's functions."""
    path = os.fsdecode(path)
    return path.partition("://")[2] if scheme_of(path) == "file" else path


def followed_link(path: str | os.PathLike[str]) -> str:
    """Resolves a symbolic link; returns any other local path as `local_path` does."""
    if not is_local(path):
        return os.fsdecode(path)
    path = local_path(path)
    return os.path.realpath(path) if os.path.islink(path) and not is_written_through(path) else path


def is_written_through(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path names a device, pipe or socket, which can't be replaced by a file."""
    if not is_local(path):
        return False
    # /dev/stdout is a link to a name in no folder, such as /proc/1/fd/pipe:[123].
    path = local_path(path)
    return (
        os.path.exists(path)
        and not os.path.isdir(path)
        and not os.path.isfile(os.path.realpath(path))
    )


def renames_folders(path: str | os.PathLike[str]) -> bool:
    """Returns whether folders on a path's file system can be renamed, and so appear complete."""
    return scheme_of(path) in _RENAMES_FOLDERS


def path_text(name: str, path: Any) -> str:
    """Returns a path as text, in the form that TensorFlow reads."""
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise TypeError(
            f"{name} must be a path: a string, bytes or os.PathLike; got {path!r}."
        ) from None
    check_is_utf8(name, path)
    return text


def check_is_no_pattern(name: str, path: str) -> None:
    """Rejects a path that TensorFlow would treat as a pattern.

    In a folder `run[lr=0.1]` TensorFlow finds none of the checkpoints that it has written there; in `run*` it removes
    those of `run1`, too.
    """
    if found := _PATTERN.search(path):
        raise ValueError(
            f"{name}={path!r} has {found[0]!r} in it, which TensorFlow takes for a pattern when it looks for files by "
            "name: it would find none, or those of other folders. Give a path without *, ?, \\ and [...]; an existing "
            "folder can be renamed."
        )


def as_pattern(path: str) -> str:
    """Returns the `tf.io.gfile.glob` pattern that matches exactly one path."""
    return re.sub(r"[*?\\[]", r"\\\g<0>", path)


def check_is_utf8(name: str, path: str | bytes | os.PathLike[str]) -> None:
    """Rejects a path with bytes that TensorFlow can't take."""
    try:
        os.fsdecode(path).encode()
    except UnicodeEncodeError:
        shown = path if isinstance(path, bytes) else os.fsdecode(path)
        raise ValueError(
            f"{name}={shown!r} is not UTF-8, and TensorFlow opens no other paths; rename "
            "the file or folder, or give another path."
        ) from None


def check_can_be_opened(name: str, path: str | os.PathLike[str]) -> None:
    """Checks that TensorFlow has a file system for a path, and that it is UTF-8; contacts no server."""
    check_is_utf8(name, path)
    if is_local(path):
        return
    # A local path's scheme needs no TensorFlow.
    import tensorflow as tf

    known = sorted(filter(None, tf.io.gfile.get_registered_schemes()))
    if scheme_of(path) not in known:
        raise ValueError(
            f"{name}={os.fsdecode(path)!r}: this TensorFlow can't open {scheme_of(path)}:// paths, "
            f"only local ones and {', '.join(f'{scheme}://' for scheme in known)}; give one of "
            "those, or import a package that opens it, such as tensorflow_io."
        )


def exists(name: str, path: str | os.PathLike[str]) -> bool:
    """Returns whether a path exists."""
    check_can_be_opened(name, path)
    if is_local(path):
        return os.path.exists(local_path(path))
    import tensorflow as tf

    try:
        return bool(tf.io.gfile.exists(os.fsdecode(path)))
    except tf.errors.OpError as error:
        reason = " ".join(error.message.split())
        raise OSError(
            f"{name}={os.fsdecode(path)!r} can't be looked up: {reason}; check the path, the network and the "
            "credentials of this process."
        ) from None


def check_can_be_written(name: str, path: str | os.PathLike[str]) -> None:
    """Raises if a file could not be written, before its content is computed."""
    given = os.fsdecode(path)
    if not given:
        raise ValueError(f"{name}={given!r} is not a path; give the path of a file.")
    if not is_local(given):
        check_can_be_opened(name, given)
        return
    if is_written_through(given):
        if not os.access(local_path(given), os.W_OK, effective_ids=True):
            raise ValueError(
                f"{name}={given!r} can't be written: you may not write to it; give another file."
            )
        return
    file = os.path.abspath(followed_link(given))
    if os.path.isdir(file):
        raise ValueError(f"{name}={given!r} is a folder; give a file in it.")
    folder = os.path.dirname(file)
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        raise ValueError(
            f"{name}={given!r} can't be written: {folder!r} is not a folder that you may write to; "
            "give another file."
        )
