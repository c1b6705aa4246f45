"""What a TFX user imports: the components and their executors."""

import importlib
from typing import Any

from tfx_tpu_trainer.extras import of_extra

with of_extra("tfx", for_what="tfx_tpu_trainer.component"):
    # What the plain modules here need too.
    import pydantic as _pydantic  # noqa: F401

# Imported when they are asked for, with TFX: configs are checked against the declared parameters without it.
_MODULES = {
    "EvalMetricsGate": "gate",
    "LastBlessedModel": "last_blessed_model",
    "TpuTrainer": "trainer",
    "TpuTrainerExecutor": "trainer_executor",
    "VertexTpuTrainer": "vertex_trainer",
    "VertexTpuTrainerExecutor": "vertex_executor",
}

__all__ = [
    "EvalMetricsGate",
    "LastBlessedModel",
    "TpuTrainer",
    "TpuTrainerExecutor",
    "VertexTpuTrainer",
    "VertexTpuTrainerExecutor",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with of_extra("tfx", for_what="tfx_tpu_trainer.component"):
        module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    found = getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
