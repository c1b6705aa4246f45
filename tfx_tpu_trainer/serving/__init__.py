"""An exported model, opened and described. Nothing here knows TFX."""

from __future__ import annotations

from tfx_tpu_trainer.serving.inspect import (
    MetaGraphDescription,
    SignatureDescription,
    TensorDescription,
    describe_saved_model,
)
from tfx_tpu_trainer.serving.load import load_serving

__all__ = [
    "MetaGraphDescription",
    "SignatureDescription",
    "TensorDescription",
    "describe_saved_model",
    "load_serving",
]
