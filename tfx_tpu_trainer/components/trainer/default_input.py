"""What a training reads where its module has no input_fn: Transform's examples."""

from __future__ import annotations

import dataclasses
import logging

from tfx_tpu_trainer.components.inputs import RowCache, TransformedInput
from tfx_tpu_trainer.components.trainer.estimators import draws_elsewhere
from tfx_tpu_trainer.components.trainer.hosts import ONLY_HOST, Host
from tfx_tpu_trainer.components.trainer.rows import Rows, check_rows
from tfx_tpu_trainer.components.trainer.train_job import TrainJob

_logger = logging.getLogger(__name__)


def row_cache_for(job: TrainJob, host: Host, *, checkpoints: str) -> RowCache | None:
    """Returns what keeps the parsed rows of a training."""
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


def check_default_input(job: TrainJob, rows: tuple[Rows, ...]) -> None:
    """Checks that there are rows that can be read, and enough for a batch in training."""
    # eval_fn goes through a split once with a short last batch: that is what is to be counted.
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


def _input(job: TrainJob, files: tuple[str, ...]) -> TransformedInput:
    return TransformedInput(
        transform_graph_path=job.transform_graph_path,
        file_patterns=files,
        dataset_factory=job.dataset_factory,
        label_key=job.settings.label_key,
        shuffle_seed=job.settings.tf_random_seed,
    )
