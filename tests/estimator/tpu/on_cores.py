"""The linear model on emulated TPU cores, and what tests of it share."""

import glob
import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.estimator import linear_model
from tfx_tpu_trainer.estimator import tpu

v1 = tf.compat.v1

BATCH = 8
BATCH_SIZES = {"train_batch_size": BATCH, "eval_batch_size": BATCH, "predict_batch_size": BATCH}
MODES = ("train", "eval", "infer")
FED = "per_host_input_for_training"

PER_SHARD_V1 = tpu.InputPipelineConfig.PER_SHARD_V1
PER_HOST_V1 = tpu.InputPipelineConfig.PER_HOST_V1
PER_HOST_V2 = tpu.InputPipelineConfig.PER_HOST_V2
BROADCAST = tpu.InputPipelineConfig.BROADCAST
SLICED = tpu.InputPipelineConfig.SLICED


def config_for(
    folder: Any,
    *,
    cores: int | None = 2,
    loop: int | str = 2,
    fed: tpu.InputPipelineConfig | None = None,
    tpu_options: dict[str, Any] | None = None,
    **options: Any,
) -> tpu.RunConfig:
    """A configuration of emulated cores, `fed` in one of the modes of InputPipelineConfig."""
    of_input = {"eval_training_input_configuration" if fed == SLICED else FED: fed} if fed else {}
    tpu_config = tpu.TPUConfig(
        num_shards=cores, iterations_per_loop=loop, **of_input, **(tpu_options or {})
    )
    return tpu.RunConfig(model_dir=str(folder), master="emulated", tpu_config=tpu_config, **options)


def make(folder: Any, model_fn: Callable[..., Any], **options: Any) -> tpu.TPUEstimator:
    """An estimator on emulated cores; options of the config and of the estimator."""
    named = ("cores", "loop", "fed", "tpu_options")
    of_config = {name: options.pop(name) for name in named if name in options}
    of_config |= {name: options.pop(name) for name in tuple(options) if name.startswith("save_")}
    of_config |= {name: options.pop(name) for name in ("tf_random_seed",) if name in options}
    of_config |= options.pop("config", {})
    return tpu.TPUEstimator(
        model_fn, config=config_for(folder, **of_config), **{**BATCH_SIZES, **options}
    )


def linear(folder: Any, *, optimizer: str = "sgd", fields: Any = None, **options: Any):
    """The linear model on emulated cores; `fields` are more fields of its spec."""
    return make(folder, linear_model.model_fn_for(tpu, optimizer, **(fields or {})), **options)


def train_input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    """The rows again and again, in full batches."""
    features, labels = linear_model.rows()
    dataset = tf.data.Dataset.from_tensor_slices(({"x": features}, labels))
    return dataset.repeat().batch(params["batch_size"], drop_remainder=True)


def run(estimator: tpu.TPUEstimator, mode: str, input_fn: Callable[..., Any] | None = None) -> Any:
    """Trains two steps, evaluates or predicts all rows."""
    if mode == "train":
        return estimator.train(input_fn or train_input_fn, steps=2)
    if mode == "eval":
        return estimator.evaluate(input_fn or linear_model.input_fn)
    return list(estimator.predict(input_fn or linear_model.input_fn))


def descended(steps: int, *, batch: int = BATCH) -> tuple[list[float], np.ndarray, float]:
    """Gradient descent on the global batches, by formula: losses, weights, bias."""
    batches = linear_model.batches(batch, epochs=1 + steps * batch // linear_model.ROWS)[:steps]
    losses, weights, biases = zip(*linear_model.descend(batches))
    return list(losses), weights[-1], biases[-1]


def assert_descended(estimator: tpu.TPUEstimator, steps: int, *, batch: int = BATCH) -> None:
    """Compares trained variables with the formula."""
    _, weights, bias = descended(steps, batch=batch)
    np.testing.assert_allclose(
        estimator.get_variable_value("linear/weights"), weights, rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(
        estimator.get_variable_value("linear/bias"), bias, rtol=1e-5, atol=1e-6
    )


def checkpoint_steps(folder: Any) -> list[int]:
    """Global steps of the checkpoints in a folder."""
    paths = glob.glob(os.path.join(folder, "model.ckpt-*.index"))
    return sorted(int(re.findall(r"-(\d+)\.index", path)[0]) for path in paths)


class Steps(v1.train.SessionRunHook):
    """Keeps the global step after each session call."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def begin(self) -> None:
        self._step = v1.train.get_global_step()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.seen.append(int(run_context.session.run(self._step)))


def recorder(seen: list, value: Any) -> Callable[..., Any]:
    """A host function for tensors: keeps what each of its calls got, gives `value`."""

    def keep(*arrays: np.ndarray) -> np.float32:
        seen.append([np.array(array) for array in arrays])
        return np.float32(value)

    return lambda *tensors: v1.py_func(keep, list(tensors), tf.float32)
