"""An exported model: opened, described, checked, and made ready for a server. Nothing here knows TFX."""

from __future__ import annotations

from tfx_tpu_trainer.serving.answers import Sample
from tfx_tpu_trainer.serving.check import check_saved_model
from tfx_tpu_trainer.serving.check_report import (
    Check,
    ServingCheck,
    ServingCheckError,
    read_serving_check,
    write_serving_check,
)
from tfx_tpu_trainer.serving.inspect import (
    MetaGraphDescription,
    SignatureDescription,
    TensorDescription,
    describe_saved_model,
)
from tfx_tpu_trainer.serving.load import load_serving
from tfx_tpu_trainer.serving.op_placement import OpPlacement, place_ops
from tfx_tpu_trainer.serving.requests import RequestError
from tfx_tpu_trainer.serving.saved_model_file import find_saved_model, read_saved_model
from tfx_tpu_trainer.serving.server_config import ServerBatching, write_server_config
from tfx_tpu_trainer.serving.single_tag import copy_metagraph
from tfx_tpu_trainer.serving.warmup import read_warmup, warmup_requests, write_warmup

__all__ = [
    "Check",
    "MetaGraphDescription",
    "OpPlacement",
    "RequestError",
    "Sample",
    "ServerBatching",
    "ServingCheck",
    "ServingCheckError",
    "SignatureDescription",
    "TensorDescription",
    "check_saved_model",
    "copy_metagraph",
    "describe_saved_model",
    "find_saved_model",
    "load_serving",
    "place_ops",
    "read_saved_model",
    "read_serving_check",
    "read_warmup",
    "warmup_requests",
    "write_server_config",
    "write_serving_check",
    "write_warmup",
]
