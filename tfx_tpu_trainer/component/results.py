"""What a training says of its model in the artifacts, whoever's estimator trained it."""

from __future__ import annotations

import contextlib
import logging

from tfx_tpu_trainer.component.artifact_folders import emptied_on_failure
from tfx_tpu_trainer.component.train_request import TrainRequest
from tfx_tpu_trainer.evaluation import (
    EvalMetrics,
    metric_properties,
    set_properties,
    write_eval_metrics,
    write_model_evaluation,
)

_logger = logging.getLogger(__name__)


def all_or_nothing(request: TrainRequest) -> contextlib.AbstractContextManager[None]:
    """Empties the folders of the model and of its evaluation if the block fails.

    Checkpoints and events stay where they are: another attempt goes on from them.

    Args:
        request: What was asked for.

    Returns:
        A context manager around all that writes into these folders.
    """
    evaluation = [request.evaluation.uri] if request.evaluation else []
    return emptied_on_failure(request.model.uri, *evaluation)


def write_metrics(request: TrainRequest, metrics: EvalMetrics) -> None:
    """Writes the metrics of the exported model: beside it, as its evaluation, and as properties of both.

    Args:
        request: What was asked for.
        metrics: What the exported checkpoint was measured at.
    """
    write_eval_metrics(request.model.uri, metrics)
    properties = metric_properties(metrics)
    set_properties(request.model, properties)
    if request.evaluation:
        write_model_evaluation(request.evaluation.uri, metrics, model_location=request.model.uri)
        set_properties(request.evaluation, properties)
    _logger.info("Model written to %s", request.serving_model_dir)
