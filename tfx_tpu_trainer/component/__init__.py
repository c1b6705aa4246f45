"""What a TFX user imports: the components and their executors."""

from tfx_tpu_trainer.component.gate import EvalMetricsGate
from tfx_tpu_trainer.component.trainer import TpuTrainer
from tfx_tpu_trainer.component.trainer_executor import TpuTrainerExecutor

__all__ = ["EvalMetricsGate", "TpuTrainer", "TpuTrainerExecutor"]
