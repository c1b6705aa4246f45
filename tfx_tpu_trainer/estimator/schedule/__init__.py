"""When to train, when to evaluate, what to export: `train_and_evaluate` and what it takes."""

from tfx_tpu_trainer.estimator.schedule._exporters import (
    BestExporter,
    Exporter,
    FinalExporter,
    LatestExporter,
)
from tfx_tpu_trainer.estimator.schedule._local import EvalSpec, TrainSpec
from tfx_tpu_trainer.estimator.schedule._tasks import train_and_evaluate

__all__ = [
    "BestExporter",
    "EvalSpec",
    "Exporter",
    "FinalExporter",
    "LatestExporter",
    "TrainSpec",
    "train_and_evaluate",
]
