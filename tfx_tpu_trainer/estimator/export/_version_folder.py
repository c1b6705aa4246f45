"""A version folder that a server sees either complete or not at all."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator

import tensorflow as tf

from tfx_tpu_trainer._support.file_systems import check_can_be_opened
from tfx_tpu_trainer._support.whole_files import commit_folder

_logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 10
# What a server opens first, where the files of a version appear one by one.
_LAST = ("saved_model.pb", "saved_model.pbtxt")


@contextlib.contextmanager
def version_folder(base: str) -> Iterator[tuple[str, str]]:
    """Reserves the next version under a folder, and puts it in place when all has been written.

    A version is the time in seconds since the epoch. Files go to its sibling `temp-<version>`,
    which TensorFlow Serving ignores, and which is renamed at the end. If the body raises, the
    sibling is removed. If the process is killed it stays, and harms nobody.
    """
    check_can_be_opened("export_dir_base", base)
    with write_errors_explained(base):
        temporary, final = _reserve(base)
    try:
        yield temporary, final
        with write_errors_explained(base):
            commit_folder(temporary, final, last=_LAST)
    except BaseException:
        with contextlib.suppress(tf.errors.OpError):
            tf.io.gfile.rmtree(temporary)
        raise


@contextlib.contextmanager
def write_errors_explained(base: str) -> Iterator[None]:
    """Says where writing failed: what TensorFlow reports may be a file name, or less."""
    try:
        yield
    except (tf.errors.OpError, OSError) as error:
        raise RuntimeError(
            f"Can't export to {base}: {reason_of(error)}. Nothing remains of this version. The "
            "folder must be writable, and its disk must have room."
        ) from error


def _reserve(base: str) -> tuple[str, str]:
    tf.io.gfile.makedirs(base)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        version = str(int(time.time()))
        temporary, final = os.path.join(base, f"temp-{version}"), os.path.join(base, version)
        if not tf.io.gfile.exists(final) and _make_new(temporary):
            return temporary, final
        _logger.warning(
            "Directory %s already exists; retrying (attempt %d/%d).", final, attempt, MAX_ATTEMPTS
        )
        time.sleep(1)
    raise RuntimeError(
        f"Failed to obtain a unique export directory name after {MAX_ATTEMPTS} attempts, one a "
        f"second, in {base}: others took these names. Give each process that exports its "
        "own folder."
    )


def _make_new(path: str) -> bool:
    """Makes a folder; tells whether it is new, so that two exporters never share one."""
    if tf.io.gfile.exists(path):
        return False
    try:
        tf.io.gfile.mkdir(path)
    except tf.errors.AlreadyExistsError:
        return False
    return True


def reason_of(error: Exception) -> str:
    """Returns an error's message in one line.

    An error of a graph quotes all Python frames in which the op was made, on indented lines; here
    those are the exporter's own.
    """
    message = error.message if isinstance(error, tf.errors.OpError) else str(error)
    # Behind the frames, which stand in front of it in errors of a session.
    message = message.rpartition("\nNode: ")[2] if "\nNode: " in message else message
    lines = [
        line
        for line in message.splitlines()
        if line and not line[0].isspace() and not line.startswith("'")
    ]
    return " ".join(lines).rstrip(".")
