"""Parses files of tf.Examples into columns, from which batches of arbitrary rows are gathered.

Features of a fixed shape and one type share a matrix. A feature of varying length has two columns: all values, and each
row's end. Strings are stored as indices into the distinct values.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import math
import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator.extending import tuned_where_it_helps

v1 = tf.compat.v1


_NUMBERS = (tf.int64, tf.float32)
# A Python bytes object with its entry in a dict.
_BYTES_OF_A_WORD = 150
_ROWS_AT_ONCE = 4096

# Part of the row order's definition, and so independent of the machine.
_FILES_AT_ONCE = 8

_SAMPLE_BYTES = 1 << 20
# A TFRecord: length, its checksum, data, their checksum.
_LENGTH = struct.Struct("<Q")
_CHECKSUMS = 2 * 4


def can_be_columns(spec: Mapping[str, Any]) -> bool:
    """Returns whether all features can be stored as columns."""
    return all(
        _is_varying(feature)
        or (isinstance(feature, tf.io.FixedLenFeature) and None not in feature.shape)
        for feature in spec.values()
    )


def _is_varying(feature: Any) -> bool:
    """Returns whether a row has a variable number of values and no other structure."""
    if isinstance(feature, tf.io.RaggedFeature):
        return not feature.partitions
    return isinstance(feature, tf.io.VarLenFeature)


class _Words:
    """The distinct values of a string feature; columns hold their indices."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self.size = 0

    def numbers(self, values: np.ndarray) -> np.ndarray:
        """Returns the indices of values, adding new ones."""
        known = self._numbers
        before = len(known)
        # `len(known)` is evaluated before the value is inserted, so a new one gets the next index.
        found = [known.setdefault(value, len(known)) for value in values.ravel()]
        new = itertools.islice(known, before, None)
        self.size += sum(_BYTES_OF_A_WORD + len(word) for word in new)
        return np.array(found, np.int64).reshape(values.shape)

    def write(self, path: str) -> int:
        """Writes all values as records of a file, in the order of their indices, and forgets them."""
        words, self._numbers = self._numbers, {}
        with tf.io.TFRecordWriter(path) as writer:
            for word in words or [b""]:
                writer.write(word)
        return max(1, len(words))


@dataclasses.dataclass(frozen=True)
class _Fixed:
    """Features of a fixed shape and one type, which share a matrix."""

    dtype: tf.DType
    # Feature -> the shape of its value in a row.
    features: dict[str, tuple[int, ...]]

    @property
    def widths(self) -> list[int]:
        """Columns of each feature."""
        return [math.prod(shape) for shape in self.features.values()]


class Columns:
    """The columns of features, filled block by block."""

    def __init__(self, spec: Mapping[str, Any], files: ColumnFiles) -> None:
        self.count = 0
        self._files = files
        self._spec = dict(spec)
        self._words = {
            name: _Words() for name, feature in spec.items() if feature.dtype == tf.string
        }
        self._fixed = [
            _Fixed(dtype, features) for dtype in _NUMBERS if (features := self._of_type(dtype))
        ]
        self._varying = [name for name, each in self._spec.items() if _is_varying(each)]
        self._values = dict.fromkeys(self._varying, 0)
        self._word_counts: dict[str, int] = {}
        for name in self._varying:
            files.append(_ends(name), np.zeros(1, np.int64))

    def __str__(self) -> str:
        """Describes the number of rows, their size and place."""
        return f"{self.count:,} rows, {len(self._files) / 1e6:,.1f} MB {self._files.place}"

    def append(self, block: Mapping[str, Any]) -> None:
        """Adds rows at the end."""
        rows = 0
        for fixed in self._fixed:
            parts = [self._as_numbers(name, block[name]) for name in fixed.features]
            rows = len(parts[0])
            matrix = np.concatenate([part.reshape(rows, -1) for part in parts], axis=1)
            self._files.append(_matrix(fixed.dtype), matrix)
        for name in self._varying:
            given = block[name]
            ends = _ends_of_rows(given)
            rows = len(ends)
            self._files.append(_ends(name), self._values[name] + ends)
            self._files.append(_values(name), self._as_numbers(name, given.values))
            self._values[name] += len(given.values)
        self.count += rows
        words = sum(words.size for words in self._words.values())
        if words > self._files.memory:
            raise OSError(
                errno.ENOMEM,
                f"the distinct strings of {', '.join(map(repr, sorted(self._words)))} need more than "
                f"{self._files.memory / 1e9:,.1f} GB of memory",
            )

    def end(self) -> None:
        """Completes the columns; call it after the last row."""
        for name, words in self._words.items():
            key = _words(name)
            self._files.append(key, np.zeros(0))
            try:
                self._word_counts[name] = words.write(self._files.path(key))
            except tf.errors.OpError as error:
                raise OSError(errno.ENOSPC, error.message) from error

    def close(self) -> None:
        """Releases memory and disk space, once no session has the columns mapped any more."""
        self._files.close()

    def tensors(self) -> dict[str, tf.Tensor]:
        """Adds the columns to the default graph as memory-mapped tensors."""
        # Accelerators have no kernel for this op.
        with tf.device("/device:CPU:0"):
            return self._tensors()

    def gather(self, tensors: Mapping[str, tf.Tensor], rows: tf.Tensor) -> dict[str, Any]:
        """Returns the features of rows, in the spec's order and as parsing returns them."""
        found: dict[str, Any] = {}
        for fixed in self._fixed:
            matrix = tf.gather(tensors[_matrix(fixed.dtype)], rows)
            for (name, shape), part in zip(
                fixed.features.items(), tf.split(matrix, fixed.widths, axis=1), strict=True
            ):
                found[name] = self._as_given(
                    name, tf.reshape(part, [*matrix.shape[:1], *shape]), tensors
                )
        for name in self._varying:
            # For the values [a b c d] with the ends [0 1 1 4], row 0 is [a], row 1 is [] and row 2 is [b c d].
            ends = tensors[_ends(name)]
            places = tf.ragged.range(tf.gather(ends, rows), tf.gather(ends, rows + 1))
            values = tf.gather(tensors[_values(name)], places.flat_values)
            given = places.with_flat_values(self._as_given(name, values, tensors))
            feature = self._spec[name]
            if isinstance(feature, tf.io.RaggedFeature):
                found[name] = given.with_row_splits_dtype(feature.row_splits_dtype)
            else:
                found[name] = given.to_sparse()
                found[name].set_shape([rows.shape[0], None])
        return {name: found[name] for name in self._spec}

    def _tensors(self) -> dict[str, tf.Tensor]:
        found = {}
        for fixed in self._fixed:
            shape = [self.count, sum(fixed.widths)]
            found[_matrix(fixed.dtype)] = self._mapped(_matrix(fixed.dtype), fixed.dtype, shape)
        for name in self._varying:
            found[_ends(name)] = self._mapped(_ends(name), tf.int64, [self.count + 1])
            shape = [self._values[name]]
            found[_values(name)] = self._mapped(_values(name), self._stored(name), shape)
        for name, count in self._word_counts.items():
            records = tf.data.TFRecordDataset(self._files.path(_words(name))).batch(count)
            found[_words(name)] = tf.ensure_shape(records.get_single_element(), [count])
        return found

    def _of_type(self, dtype: tf.DType) -> dict[str, tuple[int, ...]]:
        return {
            name: tuple(tf.TensorShape(feature.shape).as_list())
            for name, feature in self._spec.items()
            if isinstance(feature, tf.io.FixedLenFeature) and self._stored(name) == dtype
        }

    def _stored(self, name: str) -> tf.DType:
        return tf.int64 if name in self._words else self._spec[name].dtype

    def _as_numbers(self, name: str, values: np.ndarray) -> np.ndarray:
        return self._words[name].numbers(values) if name in self._words else values

    def _as_given(
        self, name: str, values: tf.Tensor, tensors: Mapping[str, tf.Tensor]
    ) -> tf.Tensor:
        return tf.gather(tensors[_words(name)], values) if name in self._words else values

    def _mapped(self, name: str, dtype: tf.DType, shape: Sequence[int]) -> tf.Tensor:
        # An empty file can't be mapped.
        if not math.prod(shape):
            return tf.zeros(shape, dtype)
        # The graph holds the path and no values. The kernel maps the file, so rows in memory exist once for all
        # sessions, and rows on disk are read on demand.
        return tf.raw_ops.ImmutableConst(
            dtype=dtype, shape=list(shape), memory_region_name=self._files.path(name)
        )


def parse_rows(
    files: Sequence[str], spec: Mapping[str, Any], *, memory: int, folder: str | None = None
) -> Columns:
    """Parses all rows of files."""
    columns = Columns(spec, ColumnFiles(memory=memory, folder=folder))
    try:
        for block in batches_of(lambda: tuned_where_it_helps(parsed_in_blocks(files, spec))):
            columns.append(block)
        columns.end()
    except BaseException:
        columns.close()
        raise
    return columns


def no_rows(spec: Mapping[str, Any]) -> Columns:
    """Returns columns without rows."""
    columns = Columns(spec, ColumnFiles(memory=1 << 16))
    columns.end()
    return columns


def batches_of(make: Callable[[], tf.data.Dataset]) -> Iterator[dict[str, Any]]:
    """Yields the batches of a dataset, read once."""
    # In its own session, since programs in TF1 behaviour have no eager iteration, and without accelerators.
    config = v1.ConfigProto(device_count={"GPU": 0})
    with tf.Graph().as_default() as graph, tf.device("/cpu:0"):
        # A one-shot iterator would require a seed if the module made TensorFlow's ops deterministic.
        iterator = v1.data.make_initializable_iterator(make())
        following = iterator.get_next()
    # A generator that is not finished keeps its contexts open, so no graph may be the default at a yield.
    with contextlib.closing(v1.Session(graph=graph, config=config)) as session:
        session.run(iterator.initializer)
        while True:
            try:
                batch = session.run(following)
            except tf.errors.OutOfRangeError:
                return
            yield batch


def _ends_of_rows(value: Any) -> np.ndarray:
    """Returns the end of each row's values in a sparse or ragged tensor."""
    if isinstance(value, v1.ragged.RaggedTensorValue):
        return value.row_splits[1:].astype(np.int64)
    return np.cumsum(np.bincount(value.indices[:, 0], minlength=int(value.dense_shape[0])))


def _matrix(dtype: tf.DType) -> str:
    return f"matrix of {dtype.name}"


def _ends(name: str) -> str:
    return f"ends of {name}"


def _values(name: str) -> str:
    return f"values of {name}"


def _words(name: str) -> str:
    return f"words of {name}"


def parsed_in_blocks(files: Sequence[str], spec: Mapping[str, Any]) -> tf.data.Dataset:
    """Parses files with one thread per core, in an order independent of the number of threads."""
    threads = os.cpu_count() or 1

    def records_of(path: tf.Tensor) -> tf.data.Dataset:
        zipped = tf.strings.regex_full_match(path, r".*\.gz")
        compression = tf.where(zipped, "GZIP", "")
        return tf.data.TFRecordDataset(path, compression_type=compression).batch(_ROWS_AT_ONCE)

    blocks = tf.data.Dataset.from_tensor_slices(list(files)).interleave(
        records_of,
        cycle_length=_FILES_AT_ONCE,
        block_length=1,
        num_parallel_calls=min(threads, _FILES_AT_ONCE),
        deterministic=True,
    )
    parsed = blocks.map(
        lambda records: tf.io.parse_example(records, dict(spec)),
        num_parallel_calls=threads,
        deterministic=True,
    )
    return parsed.prefetch(2)


def estimated_rows(files: Sequence[str]) -> int | None:
    """Estimates the number of rows in files; exact up to one MiB."""
    sizes = [tf.io.gfile.stat(file).length for file in files]
    read, rows = 0, 0.0
    for file, size in zip(files, sizes, strict=True):
        # Files are added until the sample is full: the first are read whole, the next in part, and the rest counts by
        # size.
        if size and read < _SAMPLE_BYTES:
            with tf.io.gfile.GFile(file, "rb") as opened:
                sample = opened.read(_SAMPLE_BYTES - read)
            rows_of_sample = _rows_in(sample, zipped=file.endswith(".gz"))
            if rows_of_sample is None:
                return None
            read, rows = read + len(sample), rows + rows_of_sample
    return round(rows * sum(sizes) / read) if rows else None


def _rows_in(sample: bytes, *, zipped: bool) -> float | None:
    try:
        # 31 is the largest window, 15, plus 16 for gzip's header. A decompressor object accepts truncated data, such as
        # a sample; `zlib.decompress` rejects it.
        content = zlib.decompressobj(31).decompress(sample) if zipped else sample
    except zlib.error:
        return None
    ends = list(itertools.takewhile(lambda end: end <= len(content), _record_ends(content)))
    if not content or not ends:
        # A compressed file without rows is not empty.
        return None if content else 0
    # The bytes after the last whole record count as a fraction of a row.
    return len(ends) * len(content) / ends[-1]


def _record_ends(content: bytes) -> Iterator[int]:
    end = 0
    while end + _LENGTH.size <= len(content):
        (length,) = _LENGTH.unpack_from(content, end)
        end += _LENGTH.size + length + _CHECKSUMS
        yield end


DISK_SHARE = 0.5
"""The share of the free disk space that the files may take."""


def can_be_kept() -> bool:
    """Returns whether unnamed files can be opened by a path here, as on Linux."""
    return hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")


class ColumnFiles:
    """Growing arrays, each in an unnamed file that disappears with the process."""

    # `memory` is in bytes; values that do not fit go into files in `folder`.
    def __init__(self, *, memory: int, folder: str | None = None) -> None:
        self.folder = folder or tempfile.gettempdir()
        self.memory = self._room = memory
        self._on_disk = False
        self._size = 0
        self._files: dict[str, IO[bytes]] = {}

    def __len__(self) -> int:
        """The size of all files in bytes."""
        return self._size

    @property
    def place(self) -> str:
        """Describes where the files are."""
        return f"on disk (below {self.folder})" if self._on_disk else "in memory"

    def append(self, name: str, values: np.ndarray) -> None:
        """Writes values at the end of a file."""
        data = np.ascontiguousarray(values).data.cast("B") if values.size else memoryview(b"")
        if not self._on_disk and self._size + len(data) > self._room:
            self._move_to_disk()
        if self._size + len(data) > self._room:
            raise OSError(
                errno.ENOSPC,
                f"they need more than {_gigabytes(self._room)}, half of what is free there",
                self.folder,
            )
        if name not in self._files:
            self._files[name] = self._opened()
        _write(self._files[name], data)
        self._size += len(data)

    def path(self, name: str) -> str:
        """Returns a path at which this process can open a file."""
        # Linux opens an unnamed file through this path.
        return f"/proc/self/fd/{self._files[name].fileno()}"

    def close(self) -> None:
        """Releases memory and disk space once no one has the files open or mapped."""
        for file in self._files.values():
            file.close()
        self._files = {}

    def _opened(self) -> IO[bytes]:
        if self._on_disk:
            return tempfile.TemporaryFile(dir=self.folder, buffering=0)
        return os.fdopen(os.memfd_create("rows"), "r+b", buffering=0)

    def _move_to_disk(self) -> None:
        self._on_disk = True
        self._room = int(shutil.disk_usage(self.folder).free * DISK_SHARE)
        for name, in_memory in self._files.items():
            in_memory.seek(0)
            self._files[name] = self._opened()
            with in_memory:
                while data := in_memory.read(1 << 24):
                    _write(self._files[name], memoryview(data))


def _write(file: IO[bytes], data: memoryview) -> None:
    # One call writes at most 2 GiB, and less if the disk is full.
    while data:
        data = data[file.write(data) :]


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"
