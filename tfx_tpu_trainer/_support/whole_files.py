"""Files and folders that appear whole or not at all, whenever the process that writes them is killed.

What is written goes to a temporary name beside its place, is put on the disk, and is renamed. A process
that is killed leaves the temporary name behind; `sweep` removes it when the next attempt begins.

| where | a file | a folder |
|---|---|---|
| a local disk, a file share, HDFS | appears whole, by one rename | appears whole, by one rename |
| an object store (gs://, s3://) | appears whole: objects do | its files appear one by one, those named `last` last |

So where a folder can't be renamed its `last` files are its marker: who reads it waits for them, by `is_whole`.

A symbolic link stays: what it names is written. Devices and pipes, such as /dev/null and /dev/stdout, are written to
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
# How long a reader waits for a marker, and how often it looks: files of gigabytes take their time.
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
    """Writes a file, its folder too where it is missing; one that is there is replaced, not its permissions."""
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
    """Yields a temporary name beside `path` to write to, and puts it in `path`'s place at the end.

    If the block raises, what it has written is removed and `path` stays as it was.
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
    """Writes JSON, its folder too where it is missing."""
    write_whole(path, json.dumps(document, indent=2, allow_nan=False) + "\n")


def parse_document(text: str | bytes, *, newest: int) -> dict[str, Any]:
    """Reads what `write_document` wrote."""
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
    """Yields a temporary folder beside `uri` to write into, and puts it in `uri`'s place at the end.

    If the block raises, the temporary folder is removed and `uri` stays as it was.
    """
    uri = followed_link(_without_slash(uri))
    _check_replaceable(uri, replaceable)
    temporary = temporary_beside(uri)
    with _failure_explained(uri, temporary), _removed_on_failure(temporary):
        _gfile().makedirs(temporary)
        yield temporary
        commit_folder(temporary, uri, last=last)


def commit_folder(written: str, uri: str, *, last: Collection[str] = ()) -> None:
    """Puts a folder that has been written in its place; what is there goes.

    What is there is a former attempt's, which was killed between this and the end of its execution.
    """
    # Whenever this process is killed, a reader of `uri` must find the old folder, the new one or none, never a part.
    # Where folders can be renamed that takes three steps: old -> aside, new -> `uri`, remove what is aside. A kill
    # between the first two leaves none, and both under temporary names, which `sweep` removes.
    # An object store moves files one by one. There a folder counts only with its marker, one of `last`: the old one
    # loses its marker before any other file, and the new one gets it after all others.
    # The files are synced before the rename: otherwise a machine that goes down may keep the name and lose the bytes.
    written, uri = _without_slash(written), followed_link(_without_slash(uri))
    gfile = _gfile()
    if is_local(uri):
        written = local_path(written)
        for name in files_below(written):
            _sync_file(os.path.join(written, name))
    if renames_folders(uri):
        # Not removed first: between a removal and the rename nothing would be there, for as long as removing takes.
        replaced = temporary_beside(uri) if gfile.isdir(uri) else None
        if replaced:
            move_folder(uri, replaced)
        try:
            move_folder(written, uri)
        except Exception:
            if replaced and gfile.isdir(uri):
                # Another attempt has put its own there in between.
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
        # Without its marker it is nobody's folder any more.
        for name in files_below(uri):
            if os.path.basename(name) in last:
                gfile.remove(os.path.join(uri, name))
        gfile.rmtree(uri)
    move_folder(written, uri, last=last)
    if gfile.exists(written):
        gfile.rmtree(written)


def move_folder(folder: str, target: str, *, last: Collection[str] = ()) -> None:
    """Renames a folder; where it can't be renamed its files move one by one.

    An empty folder may stay behind there.
    """
    if is_local(folder):
        os.rename(local_path(folder), local_path(target))
        return
    gfile = _gfile()
    if renames_folders(folder):
        gfile.rename(folder, target)
        return
    # TensorFlow's ram:// drops the files when asked to rename a folder (seen with TF 2.16.2).
    names = sorted(files_below(folder), key=lambda name: os.path.basename(name) in last)
    for name in names:
        path = os.path.join(target, name)
        gfile.makedirs(os.path.dirname(path))
        gfile.rename(os.path.join(folder, name), path)


def is_whole(folder: str, markers: Collection[str]) -> bool:
    """Tells whether a folder is whole, and waits for one that is being written file by file.

    Where folders are renamed there is nothing to wait for, nor where a folder has no files yet.
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
    """Removes what killed processes have left in a folder and of the folder next to it; returns the paths.

    Nobody else may be writing there: a temporary name looks the same while it is in use.
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
    """Makes a folder where there is none, and writes to it."""
    from tensorflow import errors

    gfile = _gfile()
    probe = temporary_beside(os.path.join(folder, "write-check"))
    gfile.makedirs(folder)
    with gfile.GFile(probe, "w") as file:
        file.write("")
    with contextlib.suppress(errors.NotFoundError):
        gfile.remove(probe)


def is_temporary(name: str) -> bool:
    """Tells whether a file or folder of this name is being written, or was when a process was killed."""
    return name.startswith(_TEMPORARY)


def _final_name(temporary: str) -> str:
    """Returns the name that a temporary file or folder was to get: `model` of `.tmp-0a1b2c3d-model`."""
    return os.path.basename(temporary).removeprefix(_TEMPORARY).partition("-")[2]


def _temporaries_in(folder: str) -> list[str]:
    gfile = _gfile()
    # Object stores list folders with a slash at the end.
    names = (name.rstrip("/") for name in gfile.listdir(folder)) if gfile.isdir(folder) else ()
    return [os.path.join(folder, name) for name in names if is_temporary(name)]


def files_below(folder: str) -> list[str]:
    """Lists the files of a folder and of those in it, by their paths from it."""
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
    """Returns a new name in the same folder, which `sweep` knows."""
    # Not the name and a suffix: object stores go by prefixes of names, and servers by names of versions.
    parent, name = os.path.split(path.rstrip("/"))
    return os.path.join(parent, f"{_TEMPORARY}{uuid.uuid4().hex[:8]}-{name}")


@contextlib.contextmanager
def _failure_explained(path: str, temporary: str) -> Iterator[None]:
    """Names what was to be written, where the system names a temporary file or none, and what to do."""
    try:
        yield
    except OSError as error:
        number, at = error.errno, error.filename
        about_it = at is None or str(at).startswith(temporary) or path.startswith(str(at))
        if number is None or not about_it:
            raise
        # A folder that was to be made is there, as a file.
        raise _failed(errno.ENOTDIR if number == errno.EEXIST else number, path) from None
    except Exception as error:
        tensorflow = sys.modules.get("tensorflow")
        if tensorflow is None or not isinstance(error, tensorflow.errors.OpError):
            raise
        # TensorFlow's local file system says `PATH; REASON`, the latter in the words of
        # `os.strerror`.
        at, _, reason = error.message.rpartition("; ")
        if not is_local(path) or not at or not (at.startswith(temporary) or path.startswith(at)):
            raise
        numbers = {os.strerror(number): number for number in _FIXES}
        raise _failed(numbers.get(reason, errno.EIO), path) from None


def _without_slash(folder: str) -> str:
    """Returns a folder's path without a slash at its end, but the root's as it is."""
    return folder.rstrip("/") or folder


def _failed(number: int, path: str) -> OSError:
    fix = _FIXES.get(number, "choose another path")
    return OSError(number, f"{os.strerror(number)}; {fix}", path)


@contextlib.contextmanager
def _removed_on_failure(path: str) -> Iterator[None]:
    try:
        yield
    # Ctrl-C and a signal too. What goes wrong here must not hide what went wrong before.
    except BaseException:
        with contextlib.suppress(Exception):
            _remove(path)
        raise


def _remove(path: str) -> None:
    if not is_local(path):
        gfile = _gfile()
        # Where folders are only prefixes of names, one is gone with its last file.
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
    # File shares that can't sync a folder say so by an error.
    with contextlib.suppress(OSError):
        _sync_file(path)


def _sync_file(path: str) -> None:
    # A rename may reach the disk before what the file holds; a machine that loses its power then has the name alone.
    # And a full disk may say so no earlier than here.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _gfile() -> ModuleType:
    # Those who write to a local disk only, as the pipelines' compiler does, need not wait for TensorFlow.
    import tensorflow as tf

    return tf.io.gfile
