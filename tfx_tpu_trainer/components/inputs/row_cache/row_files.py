"""Files of tf.Examples as TFRecords: read in whole batches, and an estimate of how many rows they have."""

from __future__ import annotations

import itertools
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

_ROWS_AT_ONCE = 4096

# Part of what the order of rows is made of, whatever the machine has.
_FILES_AT_ONCE = 8

_SAMPLE_BYTES = 1 << 20
_LENGTH = struct.Struct("<Q")
_CHECKSUMS = 2 * 4


def parsed_in_blocks(files: Sequence[str], spec: Mapping[str, Any]) -> tf.data.Dataset:
    """Parses files, with as many threads as this machine has, in an order that does not depend on it."""
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
    """Estimates how many rows files have: exactly, where all of them together have a MiB at most."""
    sizes = [tf.io.gfile.stat(file).length for file in files]
    read, rows = 0, 0.0
    for file, size in zip(files, sizes, strict=True):
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
        content = zlib.decompressobj(31).decompress(sample) if zipped else sample
    except zlib.error:
        return None
    ends = list(itertools.takewhile(lambda end: end <= len(content), _record_ends(content)))
    if not content or not ends:
        # A zipped file of no rows has some bytes all the same.
        return None if content else 0
    # What the sample has of the record after the last whole one is a part of a row.
    return len(ends) * len(content) / ends[-1]


def _record_ends(content: bytes) -> Iterator[int]:
    end = 0
    while end + _LENGTH.size <= len(content):
        (length,) = _LENGTH.unpack_from(content, end)
        end += _LENGTH.size + length + _CHECKSUMS
        yield end
