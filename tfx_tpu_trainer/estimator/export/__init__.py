"""Exports of trained models; mirrors `tf.estimator.export`, and adds `HostSignature`."""

from tfx_tpu_trainer.estimator.export.outputs import (
    ClassificationOutput,
    ExportOutput,
    PredictOutput,
    RegressionOutput,
)
from tfx_tpu_trainer.estimator.export.receiver_fns import (
    build_parsing_serving_input_receiver_fn,
    build_raw_serving_input_receiver_fn,
    build_raw_supervised_input_receiver_fn,
    build_supervised_input_receiver_fn_from_input_fn,
)
from tfx_tpu_trainer.estimator.export.receivers import (
    HostSignature,
    ServingInputReceiver,
    SupervisedInputReceiver,
    TensorServingInputReceiver,
)
from tfx_tpu_trainer.estimator.export.saved_model import export_saved_model

__all__ = [
    "ClassificationOutput",
    "ExportOutput",
    "HostSignature",
    "PredictOutput",
    "RegressionOutput",
    "ServingInputReceiver",
    "SupervisedInputReceiver",
    "TensorServingInputReceiver",
    "build_parsing_serving_input_receiver_fn",
    "build_raw_serving_input_receiver_fn",
    "build_raw_supervised_input_receiver_fn",
    "build_supervised_input_receiver_fn_from_input_fn",
    "export_saved_model",
]
