"""The page of a training, in the ModelRun artifact."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.messages import printable
from tfx_tpu_trainer._support.progress import EVALUATE, TRAIN, Progress
from tfx_tpu_trainer.components.report import (
    Lineage,
    gather,
    versions,
    write_page,
)
from tfx_tpu_trainer.components.trainer.resume import code_of
from tfx_tpu_trainer.components.trainer.train_job import TrainJob
from tfx_tpu_trainer.estimator.extending import RowSample

_logger = logging.getLogger(__name__)


def write_run_page(
    job: TrainJob,
    folder: str,
    progress: Progress,
    *,
    identity: str | None = None,
    rows: RowSample | None = None,
    batch_size: int | None = None,
    stopped: BaseException | None = None,
) -> None:
    """Writes `run.html` and `run.json`. Where that fails there is a warning: a training is worth more than its page."""
    seconds = dict(progress.seconds)
    try:
        lineage = Lineage(
            ran_on=where_it_ran(progress),
            inputs={
                key: "; ".join(artifact.uri for artifact in artifacts)
                for key, artifacts in sorted(job.inputs.items())
            },
            settings=_settings(job),
            versions=versions(),
            identity=identity,
            phase_seconds=seconds,
            code=code_of(job.source),
            rows=_rows_seen(folder, rows=rows, batch_size=batch_size),
        )
        run = gather(
            folder,
            title=": ".join(filter(None, (job.pipeline, job.node))) or "TpuTrainer",
            model=job.model.uri,
            lineage=lineage,
            rows=rows,
            statistics=next((each.uri for each in job.inputs.get("statistics") or ()), None),
            stopped=None if stopped is None else _in_words(stopped),
        )
        # Beside a training that failed nobody reads the artifact: TFX removes it.
        elsewhere = () if stopped or job.page is None else (job.page.path,)
        path = write_page(run, folder, copies=elsewhere)
    except Exception as error:  # Whatever it is, the model is trained.
        _logger.warning("The page of this training could not be written: %s", _in_words(error))
        return
    _logger.info("The page of this training is %s", printable(path))


def _rows_seen(folder: str, *, rows: RowSample | None, batch_size: int | None) -> dict[str, int]:
    """Returns how many rows went through a model: in its steps up to the last checkpoint, and in its evaluation."""
    seen = {}
    path = tf.train.latest_checkpoint(folder)
    step = path and path.rpartition("-")[2]
    if step and step.isdecimal() and batch_size is not None:
        seen["training"] = int(step) * batch_size
    if rows is not None:
        seen["evaluation of the exported checkpoint"] = rows.seen
    return seen


def where_it_ran(progress: Progress) -> str | None:
    """Returns where a model was trained, in words; `None` if unknown."""
    # A retry may have had nothing left to train.
    return progress.ran_on.get(TRAIN) or progress.ran_on.get(EVALUATE)


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _settings(job: TrainJob) -> dict[str, str]:
    """Returns what differs from its default, and what the user's functions are given."""
    settings: dict[str, Any] = {
        "train_steps": job.train_steps,
        "eval_steps": job.eval_steps,
        **job.settings.model_dump(exclude_defaults=True),
        **_below("hyperparameters", job.hyperparameters),
        **_below("custom_config", job.custom_config or {}),
    }
    return {name: str(value) for name, value in sorted(settings.items()) if value is not None}


def _below(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}.{key}": value for key, value in values.items()}
