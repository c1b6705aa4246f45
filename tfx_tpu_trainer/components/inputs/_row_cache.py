"""Keeps a training's parsed rows for all epochs, and parses files again when they change.

Whether and where rows are kept is decided once per training and logged in one line. Files are checked between epochs.
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
"""The share of the available memory that the rows may take."""

TIME_SHARE = 0.01
"""The share of a training's time for checks of the files: few rows make short epochs, and buckets are slow."""

# The last op of `shuffled_row_numbers`. A checkpoint's description of its input contains it if rows were drawn from
# columns, but not if they were streamed.
_MARK = "RebatchDataset"

# An estimate from a file's beginning may be slightly off. Parsing this many rows a second time costs less than making a
# training of one epoch wait for all of them.
_SECOND_EPOCH = 1.05


@dataclasses.dataclass(eq=False, kw_only=True)
class RowCache:
    """The parsed rows of one training in this process; it must outlive all the training's sessions.

    Attributes:
        rows_to_draw: The number of rows that the training draws in total. A training without a second epoch gains
            nothing, and parses its rows as it reads them. `None` keeps them in any case.
        checkpoints: Folder of the training's checkpoints: a training that has begun without a cache continues without
            one, with the next rows. Defaults to `""`: it has not begun.
        memory: The most bytes of rows in memory. Defaults to `None`: `MEMORY_SHARE` of what is available.
        folder: Folder on local disk for rows that do not fit. Defaults to `None`, the folder of temporary files.
    """

    rows_to_draw: int | None
    checkpoints: str = ""
    memory: int | None = None
    folder: str | None = None
    # Three invariants hold between calls. All of `_kept` was parsed from files in `_state`: if that changes, all parts
    # are dropped together, so no epoch mixes yesterday's rows of one file with today's of another. Columns that
    # were handed out are closed by `release` only: the graph of an earlier session has them mapped, and they wait in
    # `_outdated`. And `is_worth_it` returns the same for all sessions of a training, since positions in streamed and in
    # cached rows differ in meaning: the checkpoint's position overrides the estimate, and `_given_up` is final.
    _kept: dict[tuple[str, ...], Columns] = dataclasses.field(default_factory=dict)
    _files: Callable[[], Sequence[str]] = tuple
    _state: str = ""
    _outdated: list[Columns] = dataclasses.field(default_factory=list)
    _given_up: bool = False

    @property
    def count(self) -> int:
        """The number of kept rows."""
        return sum(columns.count for columns in self._kept.values())

    def is_worth_it(self, files: Sequence[str]) -> bool:
        """Returns whether rows are kept.

        Args:
            files: Paths of all files that the training reads, on all hosts.
        """
        if self._given_up or not can_be_kept():
            return False
        begun = latest_description(self.checkpoints) if self.checkpoints else None
        if begun is not None:
            return _MARK in begun
        # A training whose checkpoint describes its input never gets here: the estimate changes with the files, but the
        # first session's decision holds for all.
        rows = estimated_rows(files)
        if rows is None:
            return False
        return self.rows_to_draw is None or self.rows_to_draw > rows * _SECOND_EPOCH

    def columns(
        self, part: Sequence[str], spec: Mapping[str, Any], *, of: Callable[[], Sequence[str]]
    ) -> Columns | None:
        """Returns the rows of files if `is_worth_it` holds for them; parses them unless they are kept already.

        Args:
            part: Paths of the files.
            spec: The feature spec for parsing their rows.
            of: Finds the paths of all files that the training reads, on all hosts.

        Returns:
            The rows; `None` if there is no room for them, so they must be parsed as they are read.

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
            # Graphs made with them may still be in use.
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
        """Returns whether files were added, removed or replaced after parsing.

        If no file exists, as may happen while files are replaced, the answer is no.
        """
        if not self._kept:
            return False
        files = self._files()
        try:
            return bool(files) and _state(files) != self._state
        except tf.errors.NotFoundError:
            return False

    def release(self) -> None:
        """Releases memory and disk space; graphs that use the rows can no longer run."""
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
    """Ends a session between two epochs when the files have changed."""

    def __init__(self, cache: RowCache, *, batch_size: int, time_share: float = TIME_SHARE) -> None:
        # Whether it has ended its last session.
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
        """Fetches the step."""
        del run_context
        return v1.train.SessionRunArgs(self._step)

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Checks the files when another epoch has begun."""
        epoch = self._epoch_at(run_values.results)
        began = time.monotonic()
        if epoch == self._epoch or began < self._not_before:
            return
        self._epoch = epoch
        self.has_found_changes = self._cache.is_outdated()
        ended = time.monotonic()
        # Example: after a check of 0.3 s with a share of 0.01, the next one waits 30 s.
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
    """Trains, and continues with the new rows whenever the files change.

    Args:
        train: Trains up to a step with the given hooks, and calls the input function again.
        cache: Keeps the rows; `None` if files are read in each epoch anyway.
        batch_size: Rows of a step, on all cores.
        time_share: The share of the time that checking the files may take. Defaults to `TIME_SHARE`.
    """
    if cache is None:
        train([])
        return
    hook = ChangedFilesHook(cache, batch_size=batch_size, time_share=time_share)
    train([hook])
    # The hook resets this when a session begins, so the loop ends after the first session without changes. Each
    # session calls the input function, which parses the current files.
    while hook.has_found_changes:
        train([hook])
