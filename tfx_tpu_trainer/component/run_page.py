"""The page of a training, in the ModelRun artifact."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from tfx_tpu_trainer.component.train_job import TrainJob
from tfx_tpu_trainer.engine.evaluating.sampled_rows import RowSample
from tfx_tpu_trainer.printable import printable
from tfx_tpu_trainer.progress.progress import EVALUATE, TRAIN, Progress
from tfx_tpu_trainer.report import Lineage, gather, versions, write_page

_logger = logging.getLogger(__name__)


def write_run_page(
    job: TrainJob,
    folder: str,
    progress: Progress,
    *,
    identity: str | None = None,
    rows: RowSample | None = None,
    stopped: BaseException | None = None,
) -> None:
    """Writes `run.html` and `run.json`. Where that fails there is a warning: a training is worth more than its page.

    Args:
        job: What was asked for.
        folder: Where the checkpoints are, and the page goes.
        progress: The seconds of the training's phases, and where it ran.
        identity: The digest of its inputs, code and settings. Defaults to `None`: nobody asked for it.
        rows: Rows of the evaluation. Defaults to `None`: none were sampled.
        stopped: What ended it before its end. Defaults to `None`: nothing did.
    """
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
        )
        run = gather(
            folder,
            title=": ".join(filter(None, (job.pipeline, job.node))) or "TpuTrainer",
            model=job.model.uri,
            lineage=lineage,
            rows=rows,
            stopped=None if stopped is None else _in_words(stopped),
        )
        path = write_page(run, folder)
    except Exception as error:  # Whatever it is, the model is trained.
        _logger.warning("The page of this training could not be written: %s", _in_words(error))
        return
    _logger.info("The page of this training is %s", printable(path))


def where_it_ran(progress: Progress) -> str | None:
    """Returns where a model was trained, in words; `None` where nobody knows."""
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
