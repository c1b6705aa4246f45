"""Writes files and folders that appear completely or not at all, even if the process is killed.

Content goes to a temporary name next to its place, is synced, and renamed. A killed process leaves the temporary name
behind; `sweep` removes it when the next attempt begins.

| where | a file | a folder |
|---|---|---|
| a local disk, a file share, HDFS | appears whole, by one rename | appears whole, by one rename |
| an object store (gs://, s3://) | appears whole: objects do | its files appear one by one, those named `last` last |

On a file system without folder renames, the `last` files mark a complete folder: readers wait for them with `is_whole`.

A symbolic link stays; its target is written. Devices and pipes, such as /dev/null and /dev/stdout, are written to
and never replaced.
"""

import contextlib
import errno
import json
import logging
import os
import pathlib
import shutil
import stat
import sys
import tempfile
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from types import ModuleType
from typing import Any

from tfx_tpu_trainer._support.file_systems import (
    followed_link,
    is_local,
    is_written_through,
    local_path,
    renames_folders,
)

_TEMPORARY = ".tmp-"
# How long a reader waits for a marker, and how often it looks; files of gigabytes take a while.
_MARKER_SECONDS = 60.0
_POLL_SECONDS = 1.0

_FIXES = {
    errno.ENOSPC: "free some space on its disk",
    errno.EDQUOT: "free some space on its disk",
    errno.EFBIG: "free some space on its disk",
    errno.EACCES: "give this user write access, or choose another path",
    errno.EPERM: "give this user write access, or choose another path",
    errno.EROFS: "choose a path on a writable disk",
}

_logger = logging.getLogger(__name__)


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Writes a file atomically, and its folder if missing; an existing file keeps its permissions."""
    data = content.encode() if isinstance(content, str) else content
    with file_written_whole(path) as temporary:
        if is_local(temporary):
            with open(temporary, "wb") as local:
                local.write(data)
        else:
            with _gfile().GFile(temporary, "wb") as remote:
                remote.write(data)


@contextlib.contextmanager
def file_written_whole(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yields a temporary name next to `path`, which replaces `path` at the end.

    If the block raises, its file is removed and `path` stays unchanged.
    """
    path = followed_link(path)
    if is_written_through(path):
        with tempfile.TemporaryDirectory() as elsewhere, _failure_explained(path, elsewhere):
            temporary = os.path.join(elsewhere, os.path.basename(path))
            yield temporary
            with open(temporary, "rb") as written, open(os.open(path, os.O_WRONLY), "wb") as target:
                shutil.copyfileobj(written, target)
        return
    temporary = temporary_beside(path)
    if not is_local(path):
        gfile = _gfile()
        gfile.makedirs(os.path.dirname(path))
        with _removed_on_failure(temporary):
            yield temporary
            gfile.rename(temporary, path, overwrite=True)
        return
    folder = os.path.dirname(path) or "."
    with _failure_explained(path, temporary), _removed_on_failure(temporary):
        os.makedirs(folder, exist_ok=True)
        yield temporary
        _sync_file(temporary)
        with contextlib.suppress(FileNotFoundError):
            os.chmod(temporary, stat.S_IMODE(os.stat(path).st_mode))
        os.replace(temporary, path)
    _sync_folder(folder)


def write_document(path: str, document: Mapping[str, Any]) -> None:
    """Writes JSON atomically, and its folder if missing."""
    write_whole(path, json.dumps(document, indent=2, allow_nan=False) + "\n")


def parse_document(text: str | bytes, *, newest: int) -> dict[str, Any]:
    """Parses what `write_document` wrote."""
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError("it is JSON nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is not valid JSON, {error}") from None
    if not isinstance(document, dict):
        raise ValueError(f"it contains a {type(document).__name__} instead of an object")
    version = document.get("version")
    if not isinstance(version, int) or isinstance(version, bool):
        raise ValueError(f"its version is {version!r} instead of a number")
    if version > newest:
        raise ValueError(
            f"its version is {document['version']} but this package reads versions up to {newest}: "
            "upgrade tfx_tpu_trainer"
        )
    return document


@contextlib.contextmanager
def folder_written_whole(
    uri: str, *, replaceable: Collection[str] = (), last: Collection[str] = ()
) -> Iterator[str]:
    """Yields a temporary folder next to `uri`, which replaces `uri` at the end.

    If the block raises, the temporary folder is removed and `uri` stays unchanged.
    """
    uri = followed_link(_without_slash(uri))
    _check_replaceable(uri, replaceable)
    temporary = temporary_beside(uri)
    with _failure_explained(uri, temporary), _removed_on_failure(temporary):
        _gfile().makedirs(temporary)
        yield temporary
        commit_folder(temporary, uri, last=last)


def commit_folder(written: str, uri: str, *, last: Collection[str] = ()) -> None:
    """Moves a finished folder to its place, and removes the old one.

    The old one belongs to an earlier attempt, which was killed between this call and the end of its execution.
    """
    # Whenever this process is killed, a reader of `uri` must find the old folder, the new one or none, never a part.
    # With renames that takes three steps: old -> aside, new -> `uri`, remove the one aside. A kill between the first
    # two leaves none, and both under temporary names, which `sweep` removes. An object store moves files one by one;
    # there a folder counts only with its marker, one of `last`: the old one loses its marker before any other file, and
    # the new one gets it after all others. Files are synced before the rename: otherwise a machine that loses power may
    # keep the name and lose the bytes.
    written, uri = _without_slash(written), followed_link(_without_slash(uri))
    gfile = _gfile()
    if is_local(uri):
        written = local_path(written)
        for name in files_below(written):
            _sync_file(os.path.join(written, name))
    if renames_folders(uri):
        # Not removed first: `uri` would be missing for as long as the removal takes.
        replaced = temporary_beside(uri) if gfile.isdir(uri) else None
        if replaced:
            move_folder(uri, replaced)
        try:
            move_folder(written, uri)
        except Exception:
            if replaced and gfile.isdir(uri):
                # Another attempt put its own folder there in between.
                _remove(replaced)
            elif replaced:
                move_folder(replaced, uri)
            raise
        if replaced:
            _remove(replaced)
        if is_local(uri):
            _sync_folder(os.path.dirname(uri) or ".")
        return
    if gfile.exists(uri):
        # Without its marker the folder no longer counts.
        for name in files_below(uri):
            if os.path.basename(name) in last:
                gfile.remove(os.path.join(uri, name))
        gfile.rmtree(uri)
    move_folder(written, uri, last=last)
    if gfile.exists(written):
        gfile.rmtree(written)


def move_folder(folder: str, target: str, *, last: Collection[str] = ()) -> None:
    """Renames a folder; on an object store, moves its files one by one.

    An empty folder may stay behind there.
    """
    if is_local(folder):
        os.rename(local_path(folder), local_path(target))
        return
    gfile = _gfile()
    if renames_folders(folder):
        gfile.rename(folder, target)
        return
    # TensorFlow's ram:// loses the files when a folder is renamed (seen with TF 2.16.2).
    names = sorted(files_below(folder), key=lambda name: os.path.basename(name) in last)
    for name in names:
        path = os.path.join(target, name)
        gfile.makedirs(os.path.dirname(path))
        gfile.rename(os.path.join(folder, name), path)


def is_whole(folder: str, markers: Collection[str]) -> bool:
    """Returns whether a folder is complete; waits for one that is being written file by file.

    It does not wait on file systems that rename folders, nor for a folder without files.
    """
    gfile = _gfile()
    ends = time.monotonic() + _MARKER_SECONDS
    waits = False
    while not any(gfile.exists(os.path.join(folder, name)) for name in markers):
        if renames_folders(folder) or not gfile.isdir(folder) or not files_below(folder):
            return False
        named = " or ".join(markers)
        if time.monotonic() >= ends:
            raise FileNotFoundError(
                f"{folder} is incomplete: it has files, but no {named}, which is written last, and "
                f"none appeared within {_MARKER_SECONDS:g} s; its writer is slow or was stopped: "
                "try again, or write it again."
            )
        if not waits:
            _logger.info(
                "Waiting up to %g s for %s in %s, which is written last",
                _MARKER_SECONDS,
                named,
                folder,
            )
            waits = True
        time.sleep(_POLL_SECONDS)
    return True


def sweep(folder: str) -> list[str]:
    """Removes temporary files that killed processes left in a folder or next to it; returns their paths.

    No other process may be writing there: a temporary name in use looks the same.
    """
    parent, own_name = os.path.split(followed_link(_without_slash(folder)))
    left = [
        *(path for path in _temporaries_in(parent) if _final_name(path) == own_name),
        *_temporaries_in(folder),
    ]
    for path in left:
        _remove(path)
    return left


def try_writing(folder: str) -> None:
    """Makes a folder if missing, and tests writing to it."""
    from tensorflow import errors

    gfile = _gfile()
    probe = temporary_beside(os.path.join(folder, "write-check"))
    gfile.makedirs(folder)
    with gfile.GFile(probe, "w") as file:
        file.write("")
    with contextlib.suppress(errors.NotFoundError):
        gfile.remove(probe)


def is_temporary(name: str) -> bool:
    """Returns whether a name is a temporary one, of a write in progress or a killed process."""
    return name.startswith(_TEMPORARY)


def _final_name(temporary: str) -> str:
    """Returns the final name of a temporary one: `model` for `.tmp-0a1b2c3d-model`."""
    return os.path.basename(temporary).removeprefix(_TEMPORARY).partition("-")[2]


def _temporaries_in(folder: str) -> list[str]:
    gfile = _gfile()
    # Object stores list folders with a trailing slash.
    names = (name.rstrip("/") for name in gfile.listdir(folder)) if gfile.isdir(folder) else ()
    return [os.path.join(folder, name) for name in names if is_temporary(name)]


def files_below(folder: str) -> list[str]:
    """Lists the files below a folder by their relative paths."""
    return [
        os.path.join(where, name)[len(folder) :].lstrip("/")
        for where, _, names in _gfile().walk(folder)
        for name in names
    ]


def _check_replaceable(uri: str, replaceable: Collection[str]) -> None:
    gfile = _gfile()
    if not gfile.exists(uri):
        return
    if not gfile.isdir(uri):
        raise FileExistsError(
            f"{uri} is a file, but a folder must be written there: choose another path."
        )
    foreign = sorted(set(gfile.listdir(uri)) - set(replaceable))
    if foreign:
        raise FileExistsError(
            f"{uri} already contains {', '.join(foreign[:5])}{' ...' if len(foreign) > 5 else ''}: "
            "give a new folder, or empty this one."
        )


def temporary_beside(path: str) -> str:
    """Returns a new temporary name in the same folder, which `sweep` recognizes."""
    # A prefix, not a suffix: object stores select by prefix, and servers read names as versions.
    parent, name = os.path.split(path.rstrip("/"))
    return os.path.join(parent, f"{_TEMPORARY}{uuid.uuid4().hex[:8]}-{name}")


@contextlib.contextmanager
def _failure_explained(path: str, temporary: str) -> Iterator[None]:
    """Names the target of a failed write if the system names a temporary file or none, and the fix."""
    try:
        yield
    except OSError as error:
        number, at = error.errno, error.filename
        about_it = at is None or str(at).startswith(temporary) or path.startswith(str(at))
        if number is None or not about_it:
            raise
        # A file has the name of the folder to make.
        raise _failed(errno.ENOTDIR if number == errno.EEXIST else number, path) from None
    except Exception as error:
        tensorflow = sys.modules.get("tensorflow")
        if tensorflow is None or not isinstance(error, tensorflow.errors.OpError):
            raise
        # TensorFlow's local file system raises `PATH; REASON`, with the reason from `os.strerror`.
        at, _, reason = error.message.rpartition("; ")
        if not is_local(path) or not at or not (at.startswith(temporary) or path.startswith(at)):
            raise
        numbers = {os.strerror(number): number for number in _FIXES}
        raise _failed(numbers.get(reason, errno.EIO), path) from None


def _without_slash(folder: str) -> str:
    """Strips a folder path's trailing slash, but not the root's."""
    return folder.rstrip("/") or folder


def _failed(number: int, path: str) -> OSError:
    fix = _FIXES.get(number, "choose another path")
    return OSError(number, f"{os.strerror(number)}; {fix}", path)


@contextlib.contextmanager
def _removed_on_failure(path: str) -> Iterator[None]:
    try:
        yield
    # Includes Ctrl-C and signals. An error in the clean-up must not hide the first one.
    except BaseException:
        with contextlib.suppress(Exception):
            _remove(path)
        raise


def _remove(path: str) -> None:
    if not is_local(path):
        gfile = _gfile()
        # Where folders are only prefixes, a folder disappears with its last file.
        if gfile.isdir(path):
            gfile.rmtree(path)
        elif gfile.exists(path):
            gfile.remove(path)
        return
    path = local_path(path)
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        pathlib.Path(path).unlink(missing_ok=True)


def _sync_folder(path: str) -> None:
    # File shares that can't sync a folder raise an error.
    with contextlib.suppress(OSError):
        _sync_file(path)


def _sync_file(path: str) -> None:
    # A rename may reach the disk before the file's content; after a power loss only the name would be left. A full disk
    # may also be reported only here.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _gfile() -> ModuleType:
    # Writers to a local disk, such as the pipelines' compiler, do not wait for TensorFlow.
    import tensorflow as tf

    return tf.io.gfile
