"""Reads the rows of a training whose module has no input_fn: checks them, and names one that causes a failure."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_transform as tft

from tfx_tpu_trainer._support.messages import first_reason
from tfx_tpu_trainer.components.inputs import RowCache, TransformedInput
from tfx_tpu_trainer.components.inputs._input_fns import InputFn
from tfx_tpu_trainer.components.inputs._parsed_rows import batches_of
from tfx_tpu_trainer.components.trainer.estimators import draws_elsewhere
from tfx_tpu_trainer.components.trainer.hosts import ONLY_HOST, Host
from tfx_tpu_trainer.components.trainer.train_job import TrainJob
from tfx_tpu_trainer.estimator.extending import NanLossError, RefuseMoreRows, count_rows

v1 = tf.compat.v1
_logger = logging.getLogger(__name__)
_ADVICE = "correct it in the data or in the preprocessing_fn, and run Transform again"

_OUT_OF_RANGE = re.compile(
    r"indices\[[\d,]*\] = (-?\d+) is not in (\[\d+, \d+\))|"
    r"label value of (-?\d+) which is outside the valid range of (\[\d+, \d+\))"
)

_OF_READING = re.compile(r"IteratorGetNext|Could not parse example")
_NODE = re.compile(r"\{\{node (?:\S+/core\d+/)?(\S+?)\}\}|\(at '(\S+)'\)")

MOST_TIMES = 10
"""How often an evaluation without a number of batches may read the rows of its split."""

_FILES_AT_ONCE = 8

_ROWS_AT_ONCE = 512
_LONGEST_SEARCH_SECS = 600

Suspect = Callable[[np.ndarray], bool]
"""Returns whether the values of a feature caused a failure."""

_FIX = (
    "give TpuTrainer(eval_args=tfx.proto.EvalArgs(num_steps=...)), or let the input end after one pass "
    "(no repeat())"
)


class EndlessEvaluationError(ValueError):
    """An evaluation that would not end."""


@dataclasses.dataclass(frozen=True)
class RowLimit:
    """The most rows that an evaluation may read."""

    split: str
    rows: int  # The number of rows counted in its files.

    @classmethod
    def of(cls, job: TrainJob) -> RowLimit | None:
        """Counts the eval splits' rows by reading their files without parsing."""
        if job.eval_steps is not None:
            return None
        rows = count_records(job.eval_files)
        return cls("+".join(job.eval_splits), rows) if rows else None

    @property
    def most(self) -> int:
        """The number of rows at which an evaluation is stopped."""
        return MOST_TIMES * self.rows

    def error(self, read: int) -> EndlessEvaluationError:
        """Returns the error for an evaluation that read more rows."""
        return EndlessEvaluationError(
            f"the evaluation of split {self.split!r} has read {read} rows, more than {MOST_TIMES} "
            f"times the {self.rows} in its files, and the input does not end: {_FIX}"
        )

    def check(self, read: int) -> None:
        """Raises if more rows were read than allowed."""
        if read > self.most:
            raise self.error(read)

    def hook(self) -> v1.train.SessionRunHook:
        """Returns a hook that stops an evaluation that reads more rows."""
        return RefuseMoreRows(self.most, self.error)


def check_input_ends(read: Callable[[], Any], *, called: str, found_in: str = "") -> None:
    """Rejects a full evaluation of a dataset with infinite cardinality."""
    with tf.Graph().as_default(), tf.device("/cpu:0"):
        data = read()
        if not isinstance(data, tf.data.Dataset):
            return
        with v1.Session() as session:
            batches = session.run(data.cardinality())
    if batches == tf.data.INFINITE_CARDINALITY:
        found = f" (the module reads it from {found_in})" if found_in else ""
        raise EndlessEvaluationError(
            f"{called} is None, and the input of the evaluation never ends (it repeats): {_FIX}{found}"
        )


def count_records(patterns: Sequence[str]) -> int | None:
    """Counts the records of TFRecord files without parsing them."""
    files = sorted(path for pattern in patterns for path in tf.io.gfile.glob(pattern))
    if not files:
        return None
    with tf.Graph().as_default(), tf.device("/cpu:0"):
        counts = [
            tf.data.TFRecordDataset(
                names,
                compression_type=compression,
                num_parallel_reads=min(len(names), _FILES_AT_ONCE),
            )
            .batch(1024)
            .reduce(tf.constant(0, tf.int64), lambda count, batch: count + tf.size(batch, tf.int64))
            for compression in ("GZIP", "")
            if (names := [name for name in files if name.endswith(".gz") == bool(compression)])
        ]
        try:
            with v1.Session() as session:
                return int(sum(session.run(counts)))
        except tf.errors.OpError as error:
            _logger.info("The rows of %s can't be counted: %s", ", ".join(patterns), error.message)
            return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of a training whose module has no input_fn."""

    split: str  # The split's name in messages.
    patterns: tuple[str, ...]  # Glob patterns of the files.
    spec: dict[str, Any]  # The feature spec to parse them with.


def row_cache_for(job: TrainJob, host: Host, *, checkpoints: str) -> RowCache | None:
    """Returns the cache of a training's parsed rows; `None` if they are parsed in each epoch."""
    settings = job.settings
    if settings.cache_input is False or host.in_cluster or draws_elsewhere(settings):
        return None
    rows = job.train_steps * settings.train_batch_size
    return RowCache(rows_to_draw=None if settings.cache_input else rows, checkpoints=checkpoints)


def train_input(
    job: TrainJob, host: Host = ONLY_HOST, row_cache: RowCache | None = None
) -> TransformedInput:
    """Returns the rows to train on."""
    if host.readers > 1:
        _logger.info("Reads part %d of %d of the training input.", host.reader + 1, host.readers)
    return dataclasses.replace(
        _input(job, job.train_files), shard=(host.reader, host.readers), cache=row_cache
    )


def eval_input(job: TrainJob) -> TransformedInput:
    """Returns the rows to evaluate."""
    return _input(job, job.eval_files)


def _input(job: TrainJob, files: tuple[str, ...]) -> TransformedInput:
    return TransformedInput(
        transform_graph_path=job.transform_graph_path,
        file_patterns=files,
        dataset_factory=job.dataset_factory,
        label_key=job.settings.label_key,
        shuffle_seed=job.settings.tf_random_seed,
    )


def rows_of(job: TrainJob) -> tuple[Rows, ...]:
    """Returns the rows that a training reads if its module has no input_fn."""
    output = tft.TFTransformOutput(job.transform_graph_path)
    spec = output.transformed_feature_spec()
    train, evaluated = "+".join(job.train_splits), "+".join(job.eval_splits)
    rows = [
        Rows(split=f"train split {train!r}", patterns=job.train_files, spec=spec),
        Rows(split=f"eval split {evaluated!r}", patterns=job.eval_files, spec=spec),
    ]
    if job.raw_eval_files:
        split = f"raw_examples, eval split {evaluated!r}"
        raw_spec = output.raw_feature_spec()
        rows.append(Rows(split=split, patterns=job.raw_eval_files, spec=raw_spec))
    return tuple(rows)


def check_default_input(job: TrainJob, rows: tuple[Rows, ...]) -> None:
    """Reads the first batch for training, and for evaluation."""
    # eval_fn reads a split once, with a smaller last batch, so rows can be counted.
    trained_on, evaluated, *_ = rows
    check_rows(
        trained_on,
        train_input(job).eval_fn(),
        batch_size=job.settings.train_batch_size,
        training=True,
    )
    check_rows(
        evaluated,
        eval_input(job).eval_fn(),
        batch_size=job.settings.rows_per_eval_batch,
        training=False,
    )


def check_rows(rows: Rows, input_fn: InputFn, *, batch_size: int, training: bool) -> None:
    """Checks that rows are readable, and enough for one training batch."""
    count = _rows_of_first_batch(rows, input_fn, batch_size)
    if not count:
        raise ValueError(f"{rows.split} has no rows; check the pipeline's input data")
    if training and count < batch_size:
        raise ValueError(
            f"train_batch_size={batch_size} is larger than the {rows.split}, which has {count} "
            f"rows, and training uses full batches only; use at most {count}"
        )


def _rows_of_first_batch(rows: Rows, input_fn: InputFn, batch_size: int) -> int:
    # In its own graph, since programs in TF1 behaviour have no eager iteration.
    with tf.Graph().as_default(), tf.device("/cpu:0"):
        try:
            dataset = input_fn({"batch_size": batch_size})
        except NotImplementedError as error:
            raise ValueError(
                f"{rows.split}: TFX can't read examples of this payload_format as a dataset; let "
                "their component write FORMAT_TF_EXAMPLE, or give an input_fn in the module"
            ) from error
        batch = v1.data.make_initializable_iterator(dataset)
        count = count_rows(batch.get_next())
        with v1.Session() as session:
            try:
                session.run(batch.initializer)
                return int(session.run(count))
            except tf.errors.OutOfRangeError:
                return 0
            except (tf.errors.OpError, UnicodeDecodeError) as error:
                fault = find_fault(rows)
                if fault is None and isinstance(error, tf.errors.OpError):
                    fault = first_reason(error.message)
                raise ValueError(
                    f"{rows.split} can't be read with Transform's schema: {fault}; give examples="
                    "transform.outputs['transformed_examples'] of the same Transform, or correct the "
                    "data and run it again"
                ) from error


@contextlib.contextmanager
def failures_explained(rows: Sequence[Rows]) -> Iterator[None]:
    """Names the row that caused a failure, and shortens TensorFlow's report to one line."""
    try:
        yield
    except NanLossError as error:
        if named := _named(rows, _not_finite):
            raise ValueError(f"{named} is not finite: {_ADVICE} ({error})") from error
        raise
    except tf.errors.OpError as error:
        if found := _explained(error.message, rows):
            raise ValueError(found) from error
        # The base class is used for codes without their own class.
        is_short = "\n" not in error.message.strip() and error.op is None
        if is_short or type(error) is tf.errors.OpError:
            raise
        # Without the op: with it, the error would quote the program's line that made the op.
        raise type(error)(None, None, _one_line(error.message)) from error


def _explained(message: str, rows: Sequence[Rows]) -> str | None:
    out = _OUT_OF_RANGE.search(message)
    if out:
        value, bounds = int(out[1] or out[3]), out[2] or out[4]
        named = _named(rows, lambda values: values.dtype.kind in "if" and value in values)
        return named and (
            f"{named} is {value}, and {_op(message)} takes {bounds}: {_ADVICE}, or make the model larger"
        )
    if not _OF_READING.search(message):
        return None
    for each in rows:
        if fault := find_fault(each):
            return f"{each.split}: {fault}; {_ADVICE}"
    return None


def _named(rows: Sequence[Rows], suspect: Suspect) -> str | None:
    for each in rows:
        if found := find_fault(each, suspect):
            return f"{each.split}: {found}"
    return None


def _not_finite(values: np.ndarray) -> bool:
    return values.dtype.kind == "f" and not np.isfinite(values).all()


def find_fault(rows: Rows, suspect: Suspect | None = None) -> str | None:
    """Finds the first row that can't be read or parsed or, given a suspect, that has such values.

    TensorFlow's errors name neither file nor position. The files are read once more, only after a failure.
    """
    end = time.monotonic() + _LONGEST_SEARCH_SECS
    files = sorted(file for pattern in rows.patterns for file in tf.io.gfile.glob(pattern))
    _logger.info("Searching %d files for the row on which the run failed.", len(files))
    for file in files:
        row = 0
        # A batch that fails is read again row by row.
        for batch in (_ROWS_AT_ONCE, 1):
            try:
                for features in _batches(file, rows.spec, skip=row, batch=batch):
                    if suspect and (found := _first_with(suspect, features)):
                        name, place = found
                        return f"the feature {name!r} in row {row + place + 1} of {file}"
                    row += batch
                    if time.monotonic() > end:
                        return None
                break
            except (tf.errors.OpError, UnicodeDecodeError) as error:
                if suspect:
                    return None
                # TensorFlow's message may quote the record, which is not text.
                reason = "it is not a tf.Example"
                if isinstance(error, tf.errors.OpError):
                    reason = first_reason(error.message)
        else:
            return f"row {row + 1} of {file} can't be read: {reason}"
    return None


def _batches(
    file: str, spec: Mapping[str, Any], *, skip: int, batch: int
) -> Iterator[dict[str, Any]]:
    def parsed() -> tf.data.Dataset:
        records = tf.data.TFRecordDataset(file, "GZIP" if file.endswith(".gz") else "")
        batches = records.skip(skip).batch(batch)
        return batches.map(lambda examples: tf.io.parse_example(examples, dict(spec)))

    return batches_of(parsed)


def _first_with(suspect: Suspect, features: Mapping[str, Any]) -> tuple[str, int] | None:
    for name, value in features.items():
        for number, values in enumerate(values_by_row(value)):
            if suspect(values):
                return name, number
    return None


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


def _one_line(message: str) -> str:
    reason = first_reason(message)
    named = _NODE.search(message)
    return f"{reason} (at {_op(message)})" if named and named[1] else reason


def _op(message: str) -> str:
    node = _NODE.search(message)
    return repr(node[1] or node[2]) if node else "an op of the model"
