"""What a training says of its model in the artifacts, whoever's estimator trained it."""

from __future__ import annotations

import contextlib
import logging

from tfx_tpu_trainer.component.artifact_folders import emptied_on_failure
from tfx_tpu_trainer.component.train_job import TrainJob
from tfx_tpu_trainer.evaluation import (
    EvalMetrics,
    metric_properties,
    set_properties,
    write_eval_metrics,
    write_model_evaluation,
)

_logger = logging.getLogger(__name__)


def all_or_nothing(job: TrainJob) -> contextlib.AbstractContextManager[None]:
    """Empties the folders of the model and of its evaluation if the block fails.

    Checkpoints and events stay where they are: another attempt goes on from them.

    Args:
        job: What was asked for.

    Returns:
        A context manager around all that writes into these folders.
    """
    evaluation = [job.evaluation.uri] if job.evaluation else []
    return emptied_on_failure(job.model.uri, *evaluation)


def write_metrics(job: TrainJob, metrics: EvalMetrics) -> None:
    """Writes the metrics of the exported model: beside it, as its evaluation, and as properties of both.

    Args:
        job: What was asked for.
        metrics: What the exported checkpoint was measured at.
    """
    write_eval_metrics(job.model.uri, metrics)
    properties = metric_properties(metrics)
    set_properties(job.model, properties)
    if job.evaluation:
        write_model_evaluation(job.evaluation.uri, metrics, model_location=job.model.uri)
        set_properties(job.evaluation, properties)
    _logger.info("Model written to %s", job.serving_model_dir)
