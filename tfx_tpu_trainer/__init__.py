"""TPUEstimator for today's TensorFlow, and a TFX component that trains with it.

```python
from tfx_tpu_trainer import EvalMetricsGate, TpuTrainer
```

What a pipeline needs is importable from here, and is loaded when it is first used: importing this module alone imports
neither TensorFlow nor TFX, so that a program can still choose TensorFlow's environment variables
(`TF_USE_LEGACY_KERAS`, `TF_CPP_MIN_LOG_LEVEL`) afterwards. `tfx_tpu_trainer.estimator` and
`tfx_tpu_trainer.estimator.tpu` contain the API of `tf.estimator` and of `tf.compat.v1.estimator.tpu`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfx_tpu_trainer.component import (
        EvalMetricsGate,
        LastBlessedModel,
        TpuTrainer,
        VertexTpuTrainer,
    )
    from tfx_tpu_trainer.hardware import TpuSpec
    from tfx_tpu_trainer.orchestration.html_page import RunPage

__version__ = "1.0.0rc1"

__all__ = [
    "EvalMetricsGate",
    "LastBlessedModel",
    "RunPage",
    "TpuSpec",
    "TpuTrainer",
    "VertexTpuTrainer",
]

_HOMES = {
    "EvalMetricsGate": "tfx_tpu_trainer.component",
    "LastBlessedModel": "tfx_tpu_trainer.component",
    # The name of its type in compiled pipelines: containers of TFX's own find it here.
    "RunPage": "tfx_tpu_trainer.orchestration.html_page",
    "TpuSpec": "tfx_tpu_trainer.hardware",
    "TpuTrainer": "tfx_tpu_trainer.component",
    "VertexTpuTrainer": "tfx_tpu_trainer.component",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
