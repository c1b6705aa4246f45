"""Small templates, inputs and settings for the tests of the engine."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator import RunConfig
from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import InputTensors, as_input_tensors
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate

v1 = tf.compat.v1

_EMPTY = {
    "features": None,
    "labels": None,
    "loss": None,
    "train_op": None,
    "predictions": {},
    "eval_metrics": None,
    "eval_metric_ops": {},
    "host_call": None,
    "make_scaffold": v1.train.Scaffold,
    "hooks": (),
    "chief_hooks": (),
}


def make_template(mode: str, **fields: Any) -> ModelTemplate:
    """A template of the default graph; fields left out are empty."""
    return ModelTemplate(graph=v1.get_default_graph(), mode=mode, **{**_EMPTY, **fields})


def batches_of(values: Any, batch_size: int) -> InputTensors:
    """An input of `values`, batched; the last batch may be short."""
    values = np.asarray(values, np.float32)
    return as_input_tensors(tf.data.Dataset.from_tensor_slices(values).batch(batch_size))


def settings_in(folder: Any) -> RunConfig:
    return RunConfig(model_dir=str(folder))
