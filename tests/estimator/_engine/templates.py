"""Small templates, inputs and settings for the tests of the engine."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator import RunConfig
from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import InputTensors, as_input_tensors
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

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


def save(folder: Any, *steps: int, with_global_step: bool = True) -> str:
    """Saves `layer/weights`, two numbers, and the global step, at each of some steps.

    Returns:
        The path of the last checkpoint.
    """
    with fresh_graph():
        global_step = v1.train.get_global_step()
        weights = v1.get_variable("layer/weights", initializer=np.float32([1, 2]))
        saver = v1.train.Saver([weights, global_step] if with_global_step else [weights])
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for step in steps:
                session.run(global_step.assign(step))
                session.run(weights.assign([step, step]))
                path = saver.save(session, str(folder / "model.ckpt"), global_step=step)
    return path
