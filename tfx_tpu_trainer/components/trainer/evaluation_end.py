"""Ensures that evaluations end: rejects endless inputs of a user's module."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.components.trainer.train_job import TrainJob
from tfx_tpu_trainer.estimator.extending import RefuseMoreRows

v1 = tf.compat.v1
_logger = logging.getLogger(__name__)

MOST_TIMES = 10
"""How often an evaluation without a number of batches may read the rows of its split."""

_FILES_AT_ONCE = 8

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
