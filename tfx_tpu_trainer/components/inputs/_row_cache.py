"""Keeps the rows of a training parsed for all of its epochs, and parses them again where their files have changed.

Whether rows are kept, and where, is decided once for a training and told in one line. Files are looked at between two
epochs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.processes import available_memory
from tfx_tpu_trainer.components.inputs._parsed_rows import (
    Columns,
    can_be_kept,
    estimated_rows,
    parse_rows,
)
from tfx_tpu_trainer.estimator.extending import LoopEndHook, latest_description

v1 = tf.compat.v1

_logger = logging.getLogger(__name__)

MEMORY_SHARE = 0.25
"""How much of the available memory the rows may take."""

TIME_SHARE = 0.01
"""How much of a training's time looking may take: few rows make short epochs, and a bucket answers slowly."""

# The op that `shuffled_row_numbers` ends with. A checkpoint's description of its input has it where
# rows were drawn from columns, and not where they were streamed.
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
    # Three invariants hold between calls. All of `_kept` was parsed from files in `_state`: where that has changed, all
    # parts are dropped together, so that no epoch has rows of yesterday from one file and of today from another.
    # Columns that were handed out are closed by `release` alone: the graph of an earlier session has them mapped, and
    # they wait in `_outdated`. And `is_worth_it` answers the same for all sessions of a training, since positions in
    # streamed and in cached rows don't mean the same: what the checkpoint's position says wins over the estimate, and
    # `_given_up` stays.
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
        # A training whose checkpoint describes its input never comes here: an estimate changes with
        # the files, and what was decided for the first session holds for all.
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


class ChangedFilesHook(LoopEndHook):
    """Ends a session between two epochs where its rows are no longer those of their files.

    Attributes:
        has_found_changes: Whether it has ended its last session.
    """

    def __init__(self, cache: RowCache, *, batch_size: int, time_share: float = TIME_SHARE) -> None:
        """Makes the hook."""
        self.has_found_changes = False
        self._cache, self._batch_size, self._time_share = cache, batch_size, time_share

    def begin(self) -> None:
        """Finds the step in the graph."""
        self.has_found_changes = False
        self._step = v1.train.get_global_step()

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Finds the epoch in which the session begins."""
        del coord
        self._epoch = self._epoch_at(session.run(self._step))
        self._not_before = 0.0

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs:
        """Asks for the step."""
        del run_context
        return v1.train.SessionRunArgs(self._step)

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Looks at the files where another epoch has begun."""
        epoch = self._epoch_at(run_values.results)
        began = time.monotonic()
        if epoch == self._epoch or began < self._not_before:
            return
        self._epoch = epoch
        self.has_found_changes = self._cache.is_outdated()
        ended = time.monotonic()
        # Example: a look that took 0.3 s, at a share of 0.01, is followed by 30 s without one.
        self._not_before = ended + (ended - began) / self._time_share
        if self.has_found_changes:
            run_context.request_stop()

    def _epoch_at(self, step: int) -> int:
        return int(step) * self._batch_size // max(1, self._cache.count)


def train_on_current_rows(
    train: Callable[[Sequence[v1.train.SessionRunHook]], object],
    cache: RowCache | None,
    *,
    batch_size: int,
    time_share: float = TIME_SHARE,
) -> None:
    """Trains, and trains on with the rows of today's files where they have changed on the way.

    Args:
        train: Trains up to a step with the hooks that it is given, and calls the input function again.
        cache: Keeps the rows; `None` where files are read in each epoch anyway.
        batch_size: Rows of a step, on all cores.
        time_share: How much of the time looking may take. Defaults to `TIME_SHARE`.
    """
    if cache is None:
        train([])
        return
    hook = ChangedFilesHook(cache, batch_size=batch_size, time_share=time_share)
    train([hook])
    # The hook resets it when a session begins, so the loop ends with the first session that has
    # come to its own end. Each session calls the input function, which parses the files of today.
    while hook.has_found_changes:
        train([hook])
