"""The real TPU compiler on any x86-64 Linux machine, before a TPU is paid for."""

from tfx_tpu_trainer.extras import of_extra

with of_extra("preflight", for_what="tfx_tpu_trainer.preflight"):
    from tfx_tpu_trainer.preflight.compiler import CompilerOptions
    from tfx_tpu_trainer.preflight.embeddings.plan import plan_embeddings
    from tfx_tpu_trainer.preflight.embeddings.results import EmbeddingPlan
    from tfx_tpu_trainer.preflight.libtpu import PreflightUnavailableError
    from tfx_tpu_trainer.preflight.report import PreflightReport, StepReport
    from tfx_tpu_trainer.preflight.run import (
        PreflightModel,
        preflight,
        preflight_function,
        preflight_saved_model,
    )

__all__ = [
    "CompilerOptions",
    "EmbeddingPlan",
    "PreflightModel",
    "PreflightReport",
    "PreflightUnavailableError",
    "StepReport",
    "plan_embeddings",
    "preflight",
    "preflight_function",
    "preflight_saved_model",
]
