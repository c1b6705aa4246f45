"""Metrics that a trainer measured -> TFMA's ModelEvaluation, a verdict and a ModelBlessing.

Nothing here runs a model or Beam: the numbers come from the engine's evaluation, and are written in the
format that TensorFlow Model Analysis and the stock components read.
"""

from __future__ import annotations

from tfx_tpu_trainer.extras import of_extra

with of_extra("tfx", for_what="tfx_tpu_trainer.evaluation"):
    from tfx_tpu_trainer.evaluation.blessing import Failure, Verdict, write_blessing
    from tfx_tpu_trainer.evaluation.eval_config import check_eval_config
    from tfx_tpu_trainer.evaluation.eval_metrics import (
        EVAL_METRICS_FILE,
        EvalMetrics,
        SliceMetrics,
        metric_properties,
        read_eval_metrics,
        set_properties,
        write_eval_metrics,
    )
    from tfx_tpu_trainer.evaluation.model_evaluation import (
        read_model_evaluation,
        write_model_evaluation,
    )

__all__ = [
    "EVAL_METRICS_FILE",
    "EvalMetrics",
    "Failure",
    "SliceMetrics",
    "Verdict",
    "check_eval_config",
    "metric_properties",
    "read_eval_metrics",
    "read_model_evaluation",
    "set_properties",
    "write_blessing",
    "write_eval_metrics",
    "write_model_evaluation",
]
