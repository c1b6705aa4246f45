"""The Estimator's own hooks: early stopping, and evaluation during training."""

from tfx_tpu_trainer.estimator.hooks._checkpoint_input_pipeline import CheckpointInputPipelineHook
from tfx_tpu_trainer.estimator.hooks._evaluations import InMemoryEvaluatorHook, read_eval_metrics
from tfx_tpu_trainer.estimator.hooks._stopping import (
    make_early_stopping_hook,
    make_stop_at_checkpoint_step_hook,
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
)

__all__ = [
    "CheckpointInputPipelineHook",
    "InMemoryEvaluatorHook",
    "make_early_stopping_hook",
    "make_stop_at_checkpoint_step_hook",
    "read_eval_metrics",
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
]
