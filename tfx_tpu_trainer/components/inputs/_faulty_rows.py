"""Finds the row that caused a failure; TensorFlow's errors name neither its file nor its position.

This costs nothing until a failure, after which the files are read once more.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer._support.messages import first_reason

v1 = tf.compat.v1

_logger = tf.get_logger()

_ROWS_AT_ONCE = 512
_LONGEST_SEARCH_SECS = 600
# A value that occurs in more features than this hardly helps to find the row.
_MOST_FEATURES = 3

_ABSENT = re.compile(r"Feature: (.+?) \(data type: \w+\) is required but could not be found")
_OTHER_TYPE = re.compile(
    r"Key: (.+?), Index: \d+\.\s+Data types don't match\. (?:Data type: (\w+) but e|E)xpected type: (\w+)"
)
_OTHER_COUNT = re.compile(
    r"Key: (.+?), Index: \d+\.\s+Number of \w+ values != expected\.\s+"
    r"[Vv]alues size: (\d+) but output shape: (\S+)"
)
_NO_EXAMPLE = re.compile(r"Could not parse example")

Suspect = Callable[[str, np.ndarray], bool]
"""Returns whether the values of a feature (by name) in one row caused a failure."""


def find_faulty_row(patterns: Sequence[str], spec: Mapping[str, Any]) -> str | None:
    """Finds the first row that can't be read or parsed."""
    with _Parser(spec) as parser:
        for file, start, records, damage in _parts(patterns):
            if records and parser.problem(records):
                problems = ((n, parser.problem([each])) for n, each in enumerate(records))
                row, problem = next(found for found in problems if found[1])
                return f"row {start + row + 1} of {file} {problem}"
            if damage is not None:
                read = start + len(records)
                beyond = f" beyond its row {read}" if read else ""
                return (
                    f"{file} can't be read{beyond} ({damage}): it was cut off or changed after it was "
                    "written"
                )
    return None


def find_values(
    patterns: Sequence[str], spec: Mapping[str, Any], suspect: Suspect
) -> tuple[str, ...]:
    """Finds the rows whose features have the values that a run failed on."""
    found: dict[str, str] = {}
    with _Parser(spec) as parser:
        for file, start, records, _ in _parts(patterns):
            if not records or parser.problem(records) or len(found) == _MOST_FEATURES:
                break
            for name, values in parser.values(records).items():
                if name in found or not suspect(name, np.concatenate(values)):
                    continue
                row = next(n for n, each in enumerate(values) if suspect(name, each))
                found[name] = f"{name!r} in row {start + row + 1} of {file}"
    return tuple(found.values())


class _Parser:
    """Parses records in its own session: programs in TF1 behaviour have no eager mode."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        with tf.Graph().as_default() as graph, tf.device("/cpu:0"):
            self._records = v1.placeholder(tf.string, [None])
            self._features = tf.io.parse_example(self._records, dict(spec))
            self._session = v1.Session(graph=graph)

    def __enter__(self) -> _Parser:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def problem(self, records: Sequence[bytes]) -> str | None:
        """Describes what is wrong with one of the records, as the rest of a sentence."""
        try:
            self._run(records)
        except tf.errors.OpError as error:
            return _in_words(error.message)
        except UnicodeDecodeError:
            # TensorFlow's message quotes the record, which is not text.
            return "is not a tf.Example"
        return None

    def values(self, records: Sequence[bytes]) -> dict[str, list[np.ndarray]]:
        """Returns each feature's values, row by row."""
        return {name: values_by_row(value) for name, value in self._run(records).items()}

    def _run(self, records: Sequence[bytes]) -> dict[str, Any]:
        return dict(self._session.run(self._features, {self._records: list(records)}))


def _in_words(message: str) -> str:
    reason = first_reason(message)
    if absent := _ABSENT.search(reason):
        return f"has no feature {absent[1]!r}, which its schema requires of all rows"
    if other := _OTHER_TYPE.search(reason):
        given = f"holds values of type {other[2]}" if other[2] else "holds values of another type"
        return f"has a feature {other[1]!r} that {given} instead of {other[3]}"
    if other := _OTHER_COUNT.search(reason):
        return f"has {other[2]} values of the feature {other[1]!r} instead of the shape {other[3]}"
    if _NO_EXAMPLE.search(reason):
        return "is not a tf.Example"
    return f"can't be parsed: {reason}"


def _parts(patterns: Sequence[str]) -> Iterator[tuple[str, int, list[bytes], str | None]]:
    """Yields records with their file and offset, and the error that ends a file early."""
    files = sorted(file for pattern in patterns for file in tf.io.gfile.glob(pattern))
    end = time.monotonic() + _LONGEST_SEARCH_SECS
    _logger.info("Searching %d files for the row on which the run failed.", len(files))
    for file in files:
        zipped = "GZIP" if file.endswith(".gz") else ""
        # A generator that is not finished keeps its contexts open, so no graph may be the default at a yield.
        with contextlib.closing(v1.Session(graph=tf.Graph())) as session:
            start = 0
            following = _begun(session, file, zipped, batch=_ROWS_AT_ONCE)
            while time.monotonic() < end:
                try:
                    records = list(session.run(following))
                except tf.errors.OutOfRangeError:
                    break
                except tf.errors.OpError:
                    # The failed batch may have good records before the damage, so it is read again one by one.
                    rest = _begun(session, file, zipped, skip=start)
                    yield (file, start, *_to_the_damage(session, rest))
                    break
                yield file, start, records, None
                start += len(records)


def _begun(
    session: v1.Session, file: str, zipped: str, *, skip: int = 0, batch: int | None = None
) -> tf.Tensor:
    with session.graph.as_default(), tf.device("/cpu:0"):
        dataset = tf.data.TFRecordDataset(file, compression_type=zipped).skip(skip)
        if batch is not None:
            dataset = dataset.batch(batch)
        # A one-shot iterator would require a seed if the module made TensorFlow's ops deterministic.
        iterator = v1.data.make_initializable_iterator(dataset)
        following = iterator.get_next()
    session.run(iterator.initializer)
    return following


def _to_the_damage(session: v1.Session, record: tf.Tensor) -> tuple[list[bytes], str | None]:
    records: list[bytes] = []
    while True:
        try:
            records.append(session.run(record))
        except tf.errors.OutOfRangeError:
            return records, None
        except tf.errors.OpError as error:
            return records, first_reason(error.message)


def values_by_row(value: Any) -> list[np.ndarray]:
    """Returns each row's values in a batch, without missing ones."""
    if isinstance(value, v1.SparseTensorValue):
        of_row = value.indices[:, 0]
        in_order = np.argsort(of_row, kind="stable")
        # Example: the values [a b c] in rows [0 0 2] of 3 are split at 2 and 2, into [a b], [] and [c].
        ends = np.searchsorted(of_row[in_order], np.arange(1, value.dense_shape[0]))
        # Without rows there is nothing to split.
        return np.split(value.values[in_order], ends)[: value.dense_shape[0]]
    if isinstance(value, v1.ragged.RaggedTensorValue):
        splits, inner = value.row_splits, value.values
        # All values below a row belong to it, at any depth. Example: outer splits [0 2 3] of inner splits [0 1 3 4]
        # give the splits [0 3 4] of the values.
        while isinstance(inner, v1.ragged.RaggedTensorValue):
            splits, inner = inner.row_splits[splits], inner.values
        return [np.ravel(inner[start:end]) for start, end in itertools.pairwise(splits)]
    return [np.ravel(row) for row in value]
