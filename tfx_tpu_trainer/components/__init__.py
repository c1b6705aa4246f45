"""Provides the components of a TFX pipeline, and everything behind them that uses TFX.

`trainer/` declares and runs the training, `gate/` judges its metrics and finds the model to compare with. They are
built from `user_module/` (the user's code), `inputs/` (Transform's output as input functions), `evaluation/` (metrics
as TFMA's artifacts and blessings), `report/` (a page about a training), `tuning/` (hyperparameter search) and
`clusters/` (a pipeline compiled for Kubeflow Pipelines and Vertex AI), each with its own face.

A name is imported when it is first used, so configs are checked against the declared parameters without TFX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfx_tpu_trainer._support.imports import lazy_names

if TYPE_CHECKING:
    from tfx_tpu_trainer.components.gate.gate import EvalMetricsGate, LastBlessedModel
    from tfx_tpu_trainer.components.trainer.module_source import source_hash
    from tfx_tpu_trainer.components.trainer.settings import TrainSettings, broken_rule
    from tfx_tpu_trainer.components.trainer.trainer import TpuTrainer
    from tfx_tpu_trainer.components.trainer.trainer_executor import TpuTrainerExecutor
    from tfx_tpu_trainer.components.trainer.values import plain_type
    from tfx_tpu_trainer.components.trainer.vertex_trainer import (
        VertexTpuTrainer,
        VertexTpuTrainerExecutor,
    )

__all__ = [
    "EvalMetricsGate",
    "LastBlessedModel",
    "TpuTrainer",
    "TpuTrainerExecutor",
    "TrainSettings",
    "VertexTpuTrainer",
    "VertexTpuTrainerExecutor",
    "broken_rule",
    "plain_type",
    "source_hash",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".gate.gate": ["EvalMetricsGate", "LastBlessedModel"],
        ".trainer.module_source": ["source_hash"],
        ".trainer.settings": ["TrainSettings", "broken_rule"],
        ".trainer.trainer": ["TpuTrainer"],
        ".trainer.trainer_executor": ["TpuTrainerExecutor"],
        ".trainer.values": ["plain_type"],
        ".trainer.vertex_trainer": ["VertexTpuTrainer", "VertexTpuTrainerExecutor"],
    },
    extra="tfx",
)
