"""Whether a training's rows are kept parsed, and where: decided once for a training, and told in one line."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.processes import available_memory
from tfx_tpu_trainer.components.inputs.row_cache.column_files import can_be_kept
from tfx_tpu_trainer.components.inputs.row_cache.parsed_rows import Columns, parse_rows
from tfx_tpu_trainer.components.inputs.row_cache.row_files import estimated_rows
from tfx_tpu_trainer.estimator.extending import latest_description

_logger = logging.getLogger(__name__)

MEMORY_SHARE = 0.25
"""How much of the available memory the rows may take."""

# Only in the position of an input that is drawn from columns.
_MARK = "RebatchDataset"

# An estimate from the beginning of a file may be a little off; that many rows of a second epoch are parsed again
# sooner than a training of one epoch waits for all of them to be parsed.
_SECOND_EPOCH = 1.05


@dataclasses.dataclass(eq=False, kw_only=True)
class RowCache:
    """The parsed rows of one training in this process, for all of its sessions: it must live as long as they do.

    Attributes:
        rows_to_draw: Rows that the training draws in all. One that does not come to a second epoch gains nothing, and
            parses its rows as it reads them. `None` keeps them in any case.
        checkpoints: Folder of the training's checkpoints: one that has begun without goes on without, and sees the
            rows that come next. Defaults to `""`: it has not begun.
        memory: Bytes that rows may take in memory. Defaults to `None`: `MEMORY_SHARE` of what is available.
        folder: Folder on local disk for what is more. Defaults to `None`: that of temporary files.
    """

    rows_to_draw: int | None
    checkpoints: str = ""
    memory: int | None = None
    folder: str | None = None
    _kept: dict[tuple[str, ...], Columns] = dataclasses.field(default_factory=dict)
    _files: Callable[[], Sequence[str]] = tuple
    _state: str = ""
    _outdated: list[Columns] = dataclasses.field(default_factory=list)
    _given_up: bool = False

    @property
    def count(self) -> int:
        """How many rows are kept."""
        return sum(columns.count for columns in self._kept.values())

    def is_worth_it(self, files: Sequence[str]) -> bool:
        """Tells whether rows are kept at all.

        Args:
            files: Paths of all files that the training reads, on all hosts.
        """
        if self._given_up or not can_be_kept():
            return False
        begun = latest_description(self.checkpoints) if self.checkpoints else None
        if begun is not None:
            return _MARK in begun
        rows = estimated_rows(files)
        if rows is None:
            return False
        return self.rows_to_draw is None or self.rows_to_draw > rows * _SECOND_EPOCH

    def columns(
        self, part: Sequence[str], spec: Mapping[str, Any], *, of: Callable[[], Sequence[str]]
    ) -> Columns | None:
        """Returns the rows of files, where `is_worth_it` says so; parsed now unless they are kept already.

        Args:
            part: Paths of the files.
            spec: How their rows are parsed.
            of: Finds the paths of all files that the training reads, on all hosts.

        Returns:
            The rows; `None` where there is no room for them: they are to be parsed as they are read.

        Raises:
            tf.errors.OpError: If a row can't be read.
        """
        state = _state(of())
        if self._kept and state != self._state:
            _logger.warning(
                "The files of the training input changed after their %d rows were parsed; parsing "
                "them again.",
                self.count,
            )
            # Graphs that were made with them may still be in use.
            self._outdated += self._kept.values()
            self._kept = {}
        self._files, self._state = of, state
        key = tuple(part)
        if key not in self._kept:
            columns = self._parsed(key, spec)
            if columns is None:
                return None
            self._kept[key] = columns
        return self._kept[key]

    def is_outdated(self) -> bool:
        """Returns whether files were added, removed or replaced since the rows were parsed.

        Files that are not there at all, as in the moment in which others take their places, tell nothing.
        """
        if not self._kept:
            return False
        files = self._files()
        try:
            return bool(files) and _state(files) != self._state
        except tf.errors.NotFoundError:
            return False

    def release(self) -> None:
        """Releases memory and disk space; graphs that were made with the rows can't be run any more."""
        for columns in (*self._outdated, *self._kept.values()):
            columns.close()
        self._outdated, self._kept = [], {}

    def _parsed(self, files: Sequence[str], spec: Mapping[str, Any]) -> Columns | None:
        memory = self.memory
        if memory is None:
            memory = int(available_memory() * MEMORY_SHARE)
        started = time.monotonic()
        _logger.info(
            "Parsing the rows of %d files of the training input, once for all epochs.", len(files)
        )
        try:
            columns = parse_rows(files, spec, memory=memory, folder=self.folder)
        except OSError as error:
            self._given_up = True
            _logger.warning(
                "The rows of the training input are parsed again in each epoch, for lack of room "
                "to keep them (%s). Provide more memory (they may take a quarter of it), or a "
                "folder on local disk (TMPDIR) with twice their size free; cache_input=False "
                "turns the cache off.",
                error,
            )
            return None
        _logger.info(
            "Parsed the training input in %.1f s: %s.", time.monotonic() - started, columns
        )
        return columns


def _state(files: Sequence[str]) -> str:
    """Returns a checksum of names, sizes and times."""
    found = ((file, tf.io.gfile.stat(file)) for file in files)
    text = "\n".join(f"{file} {stat.length} {stat.mtime_nsec}" for file, stat in found)
    return hashlib.sha256(text.encode()).hexdigest()
