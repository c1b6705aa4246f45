"""The ids that features look up, one batch after the other: of files, of an input pipeline, or drawn.

However many ids there are, those of one batch are in memory.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfx_tpu_trainer.engine.feeding.input_pipeline import as_input_tensors
from tfx_tpu_trainer.estimator import ModeKeys
from tfx_tpu_trainer.estimator.construction import call_graph
from tfx_tpu_trainer.estimator.tpu import RunConfig
from tfx_tpu_trainer.estimator.user_calls import call_input_fn
from tfx_tpu_trainer.preflight.embeddings.layout import samples_of_row
from tfx_tpu_trainer.user_module.failures import first_reason

v1 = tf.compat.v1

NO_ID = -1
"""Stands in a dense row where it has fewer ids than others."""


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
        """Reads rows.

        Args:
            first: The first row.
            count: How many.

        Returns:
            Ids of shape [count] or [count, ids], and `None`; or those of all rows, [ids], and where each row
            ends among them.
        """


class FileIds(IdSource):
    """Ids in .npy files, row after row: `[rows]`, or `[rows, ids]` with -1 where a row has fewer.

    Args:
        paths: The files, in order.
        row_ends: A .npy file with as many integers as there are rows, each the sum of the numbers of ids of
            the rows up to it; the files then hold `[ids]`. Defaults to `None`: a row is a row of the array.

    Raises:
        ValueError: A file can't be read, or holds something else.
    """

    def __init__(self, paths: Sequence[str], *, row_ends: str | None = None) -> None:
        self._files = [_Array.open(path) for path in paths]
        shapes = {file.shape[1:] for file in self._files}
        if len(shapes) > 1:
            first, other = (
                self._files[0],
                next(each for each in self._files if each.shape[1:] != self._files[0].shape[1:]),
            )
            raise ValueError(
                f"{other.path} has rows of shape {list(other.shape[1:])}, and {first.path} of "
                f"{list(first.shape[1:])}: give files of one kind to a feature."
            )
        self._starts = [0, *itertools.accumulate(file.shape[0] for file in self._files)]
        self._ends = None if row_ends is None else _Array.open(row_ends)
        self.rows = self._starts[-1]
        if self._ends is not None:
            if len(self._ends.shape) != 1 or len(self._files[0].shape) != 1:
                raise ValueError(f"{row_ends}: with row_ends, all arrays have one dimension.")
            self.rows = self._ends.shape[0]
            last = int(self._ends.read(self.rows - 1, 1)[0]) if self.rows else 0
            if last != self._starts[-1]:
                raise ValueError(
                    f"{row_ends} ends with {last:,}, and the files of the ids hold {self._starts[-1]:,}: its "
                    "last number is that of all ids."
                )

    def read(self, first: int, count: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64] | None]:
        """See `IdSource`."""
        if self._ends is None:
            return self._read(first, count), None
        before = int(self._ends.read(first - 1, 1)[0]) if first else 0
        ends = self._ends.read(first, count).astype(np.int64) - before
        if ends[0] < 0 or (np.diff(ends) < 0).any():
            raise ValueError(
                f"{self._ends.path}: a number from row {first:,} on is lower than the one before it; each is "
                "the sum of the ids of the rows up to it."
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

    Args:
        vocabulary_size: Rows of the table.
        exponent: 0 is uniform; about 1 is what words and items of shops have.
        per_row: Ids of a row.
        rows: How many rows.
        seed: What the ids are drawn by.
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
    """Reads batches of sources, without the rows after the last whole batch, as a training does.

    Args:
        sources: Feature -> its ids; as many rows of each.
        features: Name -> `tf.tpu.experimental.embedding.FeatureConfig`.
        batch_size: Rows of a step over all replicas.

    Yields:
        Feature -> its ids.

    Raises:
        ValueError: The sources have different numbers of rows, or an id is no row of its table.
    """
    rows = {name: source.rows for name, source in sources.items()}
    for name in rows:
        first = next(iter(rows))
        if rows[name] != rows[first]:
            raise ValueError(
                f"feature {name!r} has {rows[name]:,} rows of ids, and {first!r} has {rows[first]:,}: a row "
                "of each belongs to one example."
            )
    for start in range(0, min(rows.values()) // batch_size * batch_size, batch_size):
        batch = {}
        for name, feature in features.items():
            values, ends = sources[name].read(start, batch_size)
            batch[name] = _feature_ids(name, feature, values, ends, batch_size, start)
        yield batch


def batches_of_dataset(
    dataset: tf.data.Dataset | Callable[..., Any],
    *,
    features: Mapping[str, Any],
    batch_size: int,
    params: Mapping[str, Any] | None = None,
) -> Batches:
    """Reads batches of a dataset or an input_fn, whose last batch is left out where it is short.

    Args:
        dataset: A dataset of batches over all replicas, or an input_fn as `TPUEstimator` takes it: of features, or
            of features and labels; features by name, dense, sparse or ragged.
        features: As in `batches_of_sources`.
        batch_size: Rows of a step over all replicas.
        params: What an input_fn gets as `params` besides the batch size. Defaults to none.

    Yields:
        Feature -> its ids.

    Raises:
        ValueError: The input fails, has no such feature, batches of another size, or an id that is no row of its
            table.
    """
    if callable(dataset):
        elements = _of_input_fn(dataset, list(features), batch_size, params or {})
    else:
        elements = _of_dataset(dataset, list(features))
    start = 0
    for element in elements:
        batch = {}
        sizes = set()
        for name, feature in features.items():
            values, ends, size = _arrays(element[name])
            sizes.add(size)
            if size == batch_size:
                batch[name] = _feature_ids(name, feature, values, ends, batch_size, start)
        if sizes != {batch_size}:
            if max(sizes) < batch_size and start:
                return
            raise ValueError(
                f"the input's batches have {' and '.join(map(str, sorted(sizes)))} rows, not the {batch_size} of "
                "--batch_size: batch by params['batch_size'], with drop_remainder=True."
            )
        yield batch
        start += batch_size


def _of_dataset(dataset: Any, names: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    for element in dataset:
        yield _chosen(element[0] if isinstance(element, tuple) else element, names)


def _of_input_fn(
    input_fn: Callable[..., Any], names: Sequence[str], batch_size: int, params: Mapping[str, Any]
) -> Iterator[Mapping[str, Any]]:
    config = RunConfig()
    with call_graph(config) as graph:
        given = {**params, "batch_size": batch_size}
        returned = call_input_fn(input_fn, mode=ModeKeys.TRAIN, params=given, config=config)
        tensors = as_input_tensors(returned).with_tensors()
        chosen = _chosen(tensors.features, names)
        initializers = [v1.tables_initializer()]
        if tensors.iterator is not None:
            initializers.append(tensors.iterator.initializer)
    # Not entered: its graph would be the default one of whoever takes the batches.
    session = v1.Session(graph=graph)
    try:
        session.run(initializers)
        while True:
            yield session.run(chosen)
    except tf.errors.OutOfRangeError:
        return
    except tf.errors.OpError as error:
        raise ValueError(
            f"the input fails: {type(error).__name__}: {first_reason(error.message)[:500]}"
        ) from error
    finally:
        session.close()


def _chosen(features: Any, names: Sequence[str]) -> dict[str, Any]:
    if not isinstance(features, Mapping):
        raise ValueError(
            f"the input's features are a {type(features).__name__}: return a dict of them by name."
        )
    for name in names:
        if name not in features:
            raise ValueError(
                f"the input has no feature {name!r}, but {', '.join(map(repr, features))}."
            )
    return {name: features[name] for name in names}


def _arrays(value: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64] | None, int]:
    """Returns the ids of a tensor of any kind, where each row ends among them, and how many rows there are."""
    if hasattr(value, "dense_shape"):
        rows = int(np.asarray(value.dense_shape)[0])
        indices = np.asarray(value.indices)
        if indices.shape[1] != 2:
            raise ValueError(
                f"a sparse feature has {indices.shape[1]} dimensions; give [rows, ids] of each."
            )
        return np.asarray(value.values), np.cumsum(np.bincount(indices[:, 0], minlength=rows)), rows
    if hasattr(value, "row_splits"):
        ends = np.asarray(value.row_splits)[1:].astype(np.int64)
        return np.asarray(value.values), ends, len(ends)
    dense = np.asarray(value)
    return dense, None, dense.shape[0] if dense.ndim else 0


def _feature_ids(
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
            f"feature {name!r}: id {int(flat[where])} in row {first + int(row[where]):,} is none of table "
            f"{feature.table.name!r}, which has 0 to {size - 1:,}: enlarge the table's vocabulary_size, or "
            "mend the ids."
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


@dataclasses.dataclass(frozen=True)
class _Array:
    """A .npy file of which rows are read: a mapped one would count as memory of the process, page by page."""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int

    @classmethod
    def open(cls, path: str) -> _Array:
        try:
            with open(path, "rb") as file:
                version = np.lib.format.read_magic(file)
                read = {
                    (1, 0): np.lib.format.read_array_header_1_0,
                    (2, 0): np.lib.format.read_array_header_2_0,
                }[version]
                shape, by_column, dtype = read(file)
                offset = file.tell()
                size = file.seek(0, 2)
        except OSError as error:
            raise ValueError(f"{path} can't be read: {error.strerror}.") from None
        except (ValueError, KeyError, EOFError) as error:
            raise ValueError(f"{path} is no .npy file ({error}): write it with np.save.") from None
        if dtype.kind not in "iu":
            raise ValueError(f"{path} holds {dtype}; ids are integers.")
        if len(shape) not in (1, 2) or (by_column and len(shape) == 2):
            raise ValueError(
                f"{path} holds an array of shape {list(shape)}{' by columns' * by_column}: give [rows] or "
                "[rows, ids], by rows."
            )
        needed = offset + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if size < needed:
            raise ValueError(
                f"{path} ends after {size:,} of {needed:,} bytes: it is not whole; write it again."
            )
        return cls(path, shape, dtype, offset)

    def read(self, first: int, count: int) -> npt.NDArray[Any]:
        of_row = self.shape[1] if len(self.shape) == 2 else 1
        values = np.fromfile(
            self.path,
            self.dtype,
            count * of_row,
            offset=self.offset + first * of_row * self.dtype.itemsize,
        )
        return values.reshape(count, *self.shape[1:])
