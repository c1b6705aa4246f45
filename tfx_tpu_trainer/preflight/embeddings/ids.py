"""The ids that features look up, one batch after the other: of files, or drawn.

However many ids there are, those of one batch are in memory.
"""

from __future__ import annotations

import abc
import itertools
import zlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tfx_tpu_trainer.preflight.embeddings.layout import samples_of_row
from tfx_tpu_trainer.preflight.embeddings.npy_files import NpyFile

NO_ID = -1
"""Fills a dense row that has fewer ids than others."""


class FeatureIds(NamedTuple):
    """The ids of a feature in one batch.

    Attributes:
        values: The ids.
        samples: Which activation each belongs to: its row, or row * length + position of a sequence.
    """

    values: npt.NDArray[np.int64]
    samples: npt.NDArray[np.int64]


Batches = Generator[Mapping[str, FeatureIds], None, None]


class IdSource(abc.ABC):
    """Rows of ids of one feature that are read from the first to the last.

    Attributes:
        rows: How many there are.
    """

    rows: int

    @abc.abstractmethod
    def read(self, first: int, count: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64] | None]:
        """Reads rows."""


class FileIds(IdSource):
    """Ids in .npy files, row after row: `[rows]`, or `[rows, ids]` with -1 where a row has fewer."""

    def __init__(self, paths: Sequence[str], *, row_ends: str | None = None) -> None:
        self._files = [NpyFile.open(path) for path in paths]
        shapes = {file.shape[1:] for file in self._files}
        if len(shapes) > 1:
            first, other = (
                self._files[0],
                next(each for each in self._files if each.shape[1:] != self._files[0].shape[1:]),
            )
            raise ValueError(
                f"{other.path} has rows of shape {list(other.shape[1:])}, and {first.path} of "
                f"{list(first.shape[1:])}: give all files of a feature the same shape of rows."
            )
        self._starts = [0, *itertools.accumulate(file.shape[0] for file in self._files)]
        self._ends = None if row_ends is None else NpyFile.open(row_ends)
        self.rows = self._starts[-1]
        if self._ends is not None:
            if len(self._ends.shape) != 1 or len(self._files[0].shape) != 1:
                raise ValueError(f"{row_ends}: with row_ends, all arrays have one dimension.")
            self.rows = self._ends.shape[0]
            last = int(self._ends.read(self.rows - 1, 1)[0]) if self.rows else 0
            if last != self._starts[-1]:
                raise ValueError(
                    f"{row_ends} ends with {last:,}, but the files of ids contain "
                    f"{self._starts[-1]:,}: its last number must be the number of all ids."
                )

    def read(self, first: int, count: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64] | None]:
        """See `IdSource`."""
        if self._ends is None:
            return self._read(first, count), None
        before = int(self._ends.read(first - 1, 1)[0]) if first else 0
        ends = self._ends.read(first, count).astype(np.int64) - before
        if ends[0] < 0 or (np.diff(ends) < 0).any():
            raise ValueError(
                f"{self._ends.path}: a number from row {first:,} on is lower than the one before "
                "it; each must be the number of ids in all rows so far."
            )
        return self._read(before, int(ends[-1])), ends

    def _read(self, first: int, count: int) -> npt.NDArray[Any]:
        parts = []
        for start, file in zip(self._starts, self._files):
            begin, end = max(first, start), min(first + count, start + file.shape[0])
            if begin < end:
                parts.append(file.read(begin - start, end - begin))
        if not parts:
            return np.zeros((0, *self._files[0].shape[1:]), np.int64)
        return np.concatenate(parts) if len(parts) > 1 else parts[0]


class ZipfIds(IdSource):
    """Ids of a distribution: id k with a probability that falls as (k + 1) ** -exponent.

    The integral of that power over k + 1 to k + 2, in closed form, so that a table of any size needs no
    memory. The same seed draws the same ids.
    """

    def __init__(
        self, vocabulary_size: int, *, exponent: float, per_row: int, rows: int, seed: int
    ) -> None:
        self.rows = rows
        self._size = vocabulary_size
        self._exponent = exponent
        self._per_row = per_row
        self._seed = seed

    def read(self, first: int, count: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64] | None]:
        """See `IdSource`."""
        uniform = np.random.default_rng((self._seed, first)).random((count, self._per_row))
        rest = 1 - self._exponent
        if abs(rest) < 1e-9:
            drawn = np.exp(uniform * np.log(self._size + 1))
        else:
            drawn = (1 + uniform * ((self._size + 1) ** rest - 1)) ** (1 / rest)
        return np.clip(drawn.astype(np.int64) - 1, 0, self._size - 1), None


def seed_of(seed: int, feature: str) -> int:
    """Returns a feature's seed, so that two features of one distribution draw different ids."""
    return (seed << 32) + zlib.crc32(feature.encode())


def batches_of_sources(
    sources: Mapping[str, IdSource], *, features: Mapping[str, Any], batch_size: int
) -> Batches:
    """Reads batches of sources, without the rows after the last whole batch, as a training does."""
    rows = {name: source.rows for name, source in sources.items()}
    for name in rows:
        first = next(iter(rows))
        if rows[name] != rows[first]:
            raise ValueError(
                f"feature {name!r} has {rows[name]:,} rows of ids, and {first!r} has "
                f"{rows[first]:,}: give every feature the same number of rows, one per example."
            )
    for start in range(0, min(rows.values()) // batch_size * batch_size, batch_size):
        batch = {}
        for name, feature in features.items():
            values, ends = sources[name].read(start, batch_size)
            batch[name] = feature_ids(name, feature, values, ends, batch_size, start)
        yield batch


def feature_ids(
    name: str,
    feature: Any,
    values: npt.NDArray[Any],
    ends: npt.NDArray[np.int64] | None,
    rows: int,
    first: int,
) -> FeatureIds:
    """Checks the ids of a batch, and says which sample each belongs to."""
    if values.dtype.kind not in "iu":
        raise ValueError(f"feature {name!r}: ids are {values.dtype}; give integers.")
    if values.ndim > 2:
        raise ValueError(
            f"feature {name!r}: ids of shape {list(values.shape)}; give one or two dimensions."
        )
    if ends is None:
        each = values.shape[1] if values.ndim == 2 else 1
        flat = values.reshape(-1)
        row = np.repeat(np.arange(rows), each)
        position = np.tile(np.arange(each), rows)
    else:
        flat = values
        lengths = np.diff(ends, prepend=0)
        row = np.repeat(np.arange(rows), lengths)
        position = np.arange(len(flat)) - np.repeat(ends - lengths, lengths)
    flat = flat.astype(np.int64)
    size = feature.table.vocabulary_size
    wrong = (flat < NO_ID) | (flat >= size)
    if wrong.any():
        where = int(np.argmax(wrong))
        raise ValueError(
            f"feature {name!r}: id {int(flat[where])} in row {first + int(row[where]):,} is not in "
            f"table {feature.table.name!r}, which has 0 to {size - 1:,}: enlarge the table's "
            "vocabulary_size, or correct the ids."
        )
    length = samples_of_row(feature)
    is_sequence = length > 1 or bool(feature.max_sequence_length)
    keep = flat != NO_ID
    if is_sequence:
        # What is longer is cut off, as TPUEmbeddingV2 does.
        keep &= position < length
    samples = row * length + (position if is_sequence else 0)
    if keep.all():
        return FeatureIds(flat, samples)
    return FeatureIds(flat[keep], samples[keep])
