"""What a TFX user imports: the components and their executors."""

from tfx_tpu_trainer.extras import of_extra

with of_extra("tfx", for_what="tfx_tpu_trainer.component"):
    from tfx_tpu_trainer.component.gate import EvalMetricsGate
    from tfx_tpu_trainer.component.last_blessed_model import LastBlessedModel
    from tfx_tpu_trainer.component.trainer import TpuTrainer
    from tfx_tpu_trainer.component.trainer_executor import TpuTrainerExecutor
    from tfx_tpu_trainer.component.vertex_executor import VertexTpuTrainerExecutor
    from tfx_tpu_trainer.component.vertex_trainer import VertexTpuTrainer

__all__ = [
    "EvalMetricsGate",
    "LastBlessedModel",
    "TpuTrainer",
    "TpuTrainerExecutor",
    "VertexTpuTrainer",
    "VertexTpuTrainerExecutor",
]
