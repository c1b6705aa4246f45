"""The API of `tf.estimator`, name for name; `estimator.tpu` has that of TPUEstimator."""

from tfx_tpu_trainer.estimator import experimental, export, tpu
from tfx_tpu_trainer.estimator.estimator import Estimator
from tfx_tpu_trainer.estimator.estimator_spec import EstimatorSpec
from tfx_tpu_trainer.estimator.mode_keys import ModeKeys
from tfx_tpu_trainer.estimator.run_config import RunConfig
from tfx_tpu_trainer.estimator.schedule import (
    BestExporter,
    EvalSpec,
    Exporter,
    FinalExporter,
    LatestExporter,
    TrainSpec,
    train_and_evaluate,
)
from tfx_tpu_trainer.estimator.warm_start import VocabInfo, WarmStartSettings

__all__ = [
    "BestExporter",
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "Exporter",
    "FinalExporter",
    "LatestExporter",
    "ModeKeys",
    "RunConfig",
    "TrainSpec",
    "VocabInfo",
    "WarmStartSettings",
    "experimental",
    "export",
    "tpu",
    "train_and_evaluate",
]
