"""Turns a trainer's metrics into TFMA's ModelEvaluation, a verdict and a ModelBlessing.

Nothing here runs a model or Beam: the numbers come from the engine's evaluation and are written in the format of
TensorFlow Model Analysis, which the stock components read. Names are imported on first use, so reading metrics
does not import TFMA.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfx_tpu_trainer._support.imports import lazy_names

if TYPE_CHECKING:
    from tfx_tpu_trainer.components.evaluation._blessing import (
        BLESSED_PROPERTY,
        VERDICT_PROPERTY,
        Failure,
        Verdict,
        write_blessing,
    )
    from tfx_tpu_trainer.components.evaluation._data_slices import slice_in_words
    from tfx_tpu_trainer.components.evaluation._eval_config import (
        check_eval_config,
        stock_evaluator_config,
    )
    from tfx_tpu_trainer.components.evaluation._eval_metrics import (
        EVAL_METRICS_FILE,
        EvalMetrics,
        SliceMetrics,
        metric_properties,
        read_eval_metrics,
        set_properties,
        write_eval_metrics,
    )
    from tfx_tpu_trainer.components.evaluation._learning_curve import (
        LearningCurve,
        compare_losses,
        overfits,
        read_learning_curve,
    )
    from tfx_tpu_trainer.components.evaluation._model_evaluation import (
        read_model_evaluation,
        write_model_evaluation,
    )
    from tfx_tpu_trainer.components.evaluation._models import list_models

__all__ = [
    "BLESSED_PROPERTY",
    "EVAL_METRICS_FILE",
    "VERDICT_PROPERTY",
    "EvalMetrics",
    "Failure",
    "LearningCurve",
    "SliceMetrics",
    "Verdict",
    "check_eval_config",
    "compare_losses",
    "list_models",
    "metric_properties",
    "overfits",
    "read_eval_metrics",
    "read_learning_curve",
    "read_model_evaluation",
    "set_properties",
    "slice_in_words",
    "stock_evaluator_config",
    "write_blessing",
    "write_eval_metrics",
    "write_model_evaluation",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "._blessing": [
            "BLESSED_PROPERTY",
            "VERDICT_PROPERTY",
            "Failure",
            "Verdict",
            "write_blessing",
        ],
        "._data_slices": ["slice_in_words"],
        "._eval_config": ["check_eval_config", "stock_evaluator_config"],
        "._eval_metrics": [
            "EVAL_METRICS_FILE",
            "EvalMetrics",
            "SliceMetrics",
            "metric_properties",
            "read_eval_metrics",
            "set_properties",
            "write_eval_metrics",
        ],
        "._learning_curve": ["LearningCurve", "compare_losses", "overfits", "read_learning_curve"],
        "._model_evaluation": ["read_model_evaluation", "write_model_evaluation"],
        "._models": ["list_models"],
    },
    extra="tfx",
)
