"""Loads, describes and checks an exported model, and prepares it for a server. Nothing here depends on TFX."""

from tfx_tpu_trainer.serving._both_graphs import compare_graphs, inputs_to_ask
from tfx_tpu_trainer.serving._check import (
    ALIKE,
    Check,
    ServingCheck,
    ServingCheckError,
    check_placement,
    check_saved_model,
    read_serving_check,
    write_serving_check,
)
from tfx_tpu_trainer.serving._comparison import Finding
from tfx_tpu_trainer.serving._inspect import (
    MetaGraphDescription,
    OpPlacement,
    SignatureDescription,
    TensorDescription,
    describe_saved_model,
    place_ops,
)
from tfx_tpu_trainer.serving._loading import LOADING_PROCESS, FreshProcess, Sample, load_serving
from tfx_tpu_trainer.serving._overview import overview
from tfx_tpu_trainer.serving._requests import (
    RequestError,
    read_tfrecords,
    read_warmup,
    request_inputs,
    says_missing,
    warmup_requests,
    write_warmup,
)
from tfx_tpu_trainer.serving._saved_model_file import (
    BINARY_FILE,
    copy_metagraph,
    find_saved_model,
    holds_saved_model,
    meta_graph_with,
    read_saved_model,
)
from tfx_tpu_trainer.serving._server_config import (
    ServerBatching,
    batching_for_tpu,
    write_server_config,
)

__all__ = [
    "ALIKE",
    "BINARY_FILE",
    "LOADING_PROCESS",
    "Check",
    "Finding",
    "FreshProcess",
    "MetaGraphDescription",
    "OpPlacement",
    "RequestError",
    "Sample",
    "ServerBatching",
    "ServingCheck",
    "ServingCheckError",
    "SignatureDescription",
    "TensorDescription",
    "batching_for_tpu",
    "check_placement",
    "check_saved_model",
    "compare_graphs",
    "copy_metagraph",
    "describe_saved_model",
    "find_saved_model",
    "holds_saved_model",
    "inputs_to_ask",
    "load_serving",
    "meta_graph_with",
    "overview",
    "place_ops",
    "read_saved_model",
    "read_serving_check",
    "read_tfrecords",
    "read_warmup",
    "request_inputs",
    "says_missing",
    "warmup_requests",
    "write_server_config",
    "write_serving_check",
    "write_warmup",
]
