"""Decides when to train, evaluate and export: `train_and_evaluate`, its specs and exporters."""

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
