"""TPUEstimator for today's TensorFlow, and a TFX component that trains with it.

```python
from tfx_tpu_trainer import EvalMetricsGate, TpuTrainer
```

What a pipeline needs is importable from here, and is loaded when it is first used: importing this module alone imports
neither TensorFlow nor TFX, so a program can still choose TensorFlow's environment variables
(`TF_USE_LEGACY_KERAS`, `TF_CPP_MIN_LOG_LEVEL`) afterwards. `tfx_tpu_trainer.estimator` and
`tfx_tpu_trainer.estimator.tpu` contain the API of `tf.estimator` and of `tf.compat.v1.estimator.tpu`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfx_tpu_trainer._support.imports import lazy_names

if TYPE_CHECKING:
    from tfx_tpu_trainer.components import (
        EvalMetricsGate,
        LastBlessedModel,
        TpuTrainer,
        VertexTpuTrainer,
    )
    from tfx_tpu_trainer.components.clusters import RunPage
    from tfx_tpu_trainer.hardware import TpuSpec

__version__ = "1.0.0rc1"

__all__ = [
    "EvalMetricsGate",
    "LastBlessedModel",
    "RunPage",
    "TpuSpec",
    "TpuTrainer",
    "VertexTpuTrainer",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".components": ["EvalMetricsGate", "LastBlessedModel", "TpuTrainer", "VertexTpuTrainer"],
        # The name of its type in compiled pipelines is tfx_tpu_trainer.RunPage: TFX's own containers find it here.
        ".components.clusters": ["RunPage"],
        ".hardware": ["TpuSpec"],
    },
)
