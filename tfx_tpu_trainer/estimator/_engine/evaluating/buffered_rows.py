"""Buffers an evaluation's rows in this process, and measures each slice of them."""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.evaluating.metric_ops import IsolatedMetrics, State
from tfx_tpu_trainer.estimator._engine.sessions.run_errors import without_preamble

_logger = tf.get_logger()

MOST_BYTES = 64 << 20
"""Bytes of rows to buffer before the slices are measured on them."""

# Larger updates are not faster, and need more memory than those of a batch.
_ROWS_OF_UPDATE, _BYTES_OF_UPDATE = 2048, 1 << 20
_ROWS_OF_PROBE = 256

_NODE = re.compile(r"\s*\[\[\{\{node (\S+)\}\}\]\]")


# A batch may have few rows of a slice, so metrics are updated with the rows of many batches at once. The first rows
# show whether that gives the same result; metrics for which it matters which rows share an update (a mean of the
# batches' means) are updated batch by batch, like those of the whole.
class BufferedSlices:
    """Measures slices on rows that arrive batch by batch."""

    def __init__(
        self,
        metrics: IsolatedMetrics,
        names: Sequence[str],
        *,
        not_rows: Sequence[str],
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._metrics = metrics
        self._names = names
        self._not_rows = not_rows
        self._most_bytes = most_bytes
        self._start()

    def _start(self) -> None:
        self._states: Sequence[State | None] = [None] * len(self._names)
        self._counted = np.zeros(len(self._names), np.int64)
        self._in_any_groups: bool | None = None
        self._values: list[np.ndarray] | None = None
        self._forget_rows()

    def _forget_rows(self) -> None:
        self._batches: list[list[np.ndarray]] = []
        self._members: list[np.ndarray] = []
        self._bytes = 0

    def add(self, before: np.int64, members: np.ndarray, *tensors: np.ndarray) -> np.int64:
        for tensor, message in zip(tensors, self._not_rows):
            if tensor.shape[:1] != members.shape[:1]:
                raise ValueError(message)
        if before == 0:
            self._start()
        self._values = None
        # Copied, since a tensor's array may keep a larger one in memory.
        self._batches.append([np.array(tensor) for tensor in tensors])
        self._members.append(members != 0)
        self._bytes += members.size + sum(map(_bytes_of, tensors))
        if self._bytes >= self._most_bytes:
            self._forget_counted()
        return np.int64(before + 1)

    def values(self, batches: np.int64) -> list[np.ndarray]:
        """Returns the number of rows and the metrics' values, slice by slice."""
        if batches == 0:
            self._start()
        if self._values is None:
            # The buffer is kept: more rows may follow.
            rows = _Rows(self._batches, self._members)
            found = zip(self._counted + rows.counts(), self._of_each(rows, self._metrics.values))
            self._values = [value for count, values in found for value in (count, *values)]
        return self._values

    def _forget_counted(self) -> None:
        """Updates the states with the buffered rows."""
        rows = _Rows(self._batches, self._members)
        self._states = self._of_each(rows, self._metrics.state)
        self._counted = self._counted + rows.counts()
        self._forget_rows()

    def _of_each(
        self, rows: _Rows, result: Callable[[], list[np.ndarray]]
    ) -> list[list[np.ndarray]]:
        """Returns a result of the metrics, their state or values, for the rows of each slice."""
        # Tried in each call until there are enough rows: the first batch of an evaluation may have only one.
        if self._in_any_groups is None:
            self._in_any_groups = self._may_group(rows)
        results = []
        for index, name in enumerate(self._names):
            parts = rows.grouped(index) if self._in_any_groups else rows.by_batch(index)
            try:
                self._metrics.start(self._states[index])
                for part in parts:
                    self._metrics.update(part)
                results.append(result())
            except tf.errors.OpError as error:
                # TensorFlow would look up a node that the message names in its own graph.
                message = _NODE.sub(r" (at \1)", without_preamble(error.message))
                raise ValueError(
                    f"metric_fn fails on the rows of slice {name!r}: {message}"
                ) from None
        return results

    def _may_group(self, rows: _Rows) -> bool | None:
        """Returns whether any rows may share an update; `None` if there are too few rows to try."""
        together = rows.some(_ROWS_OF_PROBE)
        number = len(together[0]) if together else 0
        if number < 2:
            return None
        # Rows may share an update only if it matters neither where they are cut (into unequal
        # parts, since a mean of means may be right for equal ones), nor whether there are updates
        # without rows: `by_batch` makes these of batches without a row of the slice, `grouped` does
        # not.
        cut = -(-number // 3)
        apart = [[column[:cut] for column in together], [column[cut:] for column in together]]
        none = [column[:0] for column in together]
        try:
            at_once = self._state_after([together])
            in_parts = self._state_after(apart)
            with_none = self._state_after([*apart, none])
        except tf.errors.OpError:
            # A slice's update will fail in the same way, with an error that names the slice.
            return False
        if all(map(_alike, at_once, in_parts)) and all(map(_alike, in_parts, with_none)):
            return True
        _logger.info(
            "The metrics depend on which rows share a batch, so the metrics of slices are updated "
            "batch by batch, which takes longer."
        )
        return False

    def _state_after(self, parts: Sequence[Sequence[np.ndarray]]) -> State:
        self._metrics.start(None)
        for part in parts:
            self._metrics.update(part)
        return self._metrics.state()


class _Rows:
    """The rows of several batches."""

    def __init__(
        self, batches: Sequence[Sequence[np.ndarray]], members: Sequence[np.ndarray]
    ) -> None:
        self._batches = list(zip(batches, members))

    @functools.cached_property
    def _joined(self) -> list[_Joined]:
        by_shape: dict[Any, list[tuple[Sequence[np.ndarray], np.ndarray]]] = {}
        for batch in self._batches:
            shapes = tuple(column.shape[1:] for column in batch[0])
            by_shape.setdefault(shapes, []).append(batch)
        return [_Joined.of(batches) for batches in by_shape.values()]

    def some(self, number: int) -> list[np.ndarray]:
        """Returns at most `number` rows, all of one shape."""
        if not self._batches:
            return []
        most = max(self._joined, key=lambda joined: len(joined.columns[0]))
        return [column[:number] for column in most.columns]

    def counts(self) -> np.ndarray | int:
        """Returns the number of rows of each slice."""
        return sum(
            np.array([np.count_nonzero(rows) for rows in joined.of_slices], np.int64)
            for joined in self._joined
        )

    def grouped(self, index: int) -> Iterator[list[np.ndarray]]:
        """Yields the rows of a slice, many at a time."""
        for joined in self._joined:
            rows = np.flatnonzero(joined.of_slices[index])
            for start in range(0, len(rows), joined.at_once):
                picked = rows[start : start + joined.at_once]
                yield [column[picked] for column in joined.columns]

    def by_batch(self, index: int) -> Iterator[list[np.ndarray]]:
        """Yields the rows of a slice batch by batch, none for batches without any."""
        for columns, members in self._batches:
            rows = np.flatnonzero(members[:, index])
            yield [column[rows] for column in columns]


@dataclasses.dataclass(frozen=True)
class _Joined:
    """Batches, concatenated."""

    # The values of each row.
    columns: Sequence[np.ndarray]
    # [slices, rows]: which rows belong to each slice.
    of_slices: np.ndarray
    # The most rows of an update.
    at_once: int

    @classmethod
    def of(cls, batches: Sequence[tuple[Sequence[np.ndarray], np.ndarray]]) -> _Joined:
        columns = [np.concatenate(parts) for parts in zip(*(batch for batch, _ in batches))]
        of_slices = np.concatenate([members for _, members in batches]).T.copy()
        of_row = sum(column.nbytes for column in columns) // max(1, len(columns[0]))
        largest = max(len(members) for _, members in batches)
        at_once = max(1, largest, min(_ROWS_OF_UPDATE, _BYTES_OF_UPDATE // max(1, of_row)))
        return cls(columns, of_slices, at_once)


def _bytes_of(values: np.ndarray) -> int:
    if values.dtype != object:
        return values.nbytes
    # A Python object takes more memory than most of the texts in it.
    return values.nbytes + sum(map(sys.getsizeof, values.ravel()))


def _alike(one: np.ndarray, other: np.ndarray) -> bool:
    """Returns whether two arrays are equal except for the order in which sums were added up."""
    if one.shape != other.shape:
        return False
    if one.dtype.kind in "fc":
        return np.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)
    return np.array_equal(one, other)
