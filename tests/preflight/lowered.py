"""Steps of small models, lowered, and the options that compile them fast."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator.tpu import CrossShardOptimizer, TPUEstimatorSpec
from tfx_tpu_trainer.hardware import find_slice
from tfx_tpu_trainer.preflight._compiling import CompilerOptions
from tfx_tpu_trainer.preflight._engine_steps import input_fn_of_specs, lower_engine_step
from tfx_tpu_trainer.preflight._report import StepReport
from tfx_tpu_trainer.preflight._results import LoweredStep
from tfx_tpu_trainer.preflight._run import compile_and_report

v1 = tf.compat.v1

CHECK_ONLY = CompilerOptions(effort=-1.0)


def lower_layers(
    units: list[int], *, rows: int, columns: int, replicas: int = 1, mode: str = "train"
) -> LoweredStep:
    """Lowers dense layers without biases, trained by Adam.

    Args:
        units: Columns of each layer.
        rows: Rows of each core.
        columns: Columns of the input.
        replicas: Copies of the model.
        mode: The step.
    """

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> TPUEstimatorSpec:
        del labels, params
        hidden = features["x"]
        for layer, width in enumerate(units):
            kernel = v1.get_variable(f"layer_{layer}/kernel", [hidden.shape[1], width])
            hidden = tf.nn.relu(tf.matmul(hidden, kernel, name=f"layer_{layer}/product"))
        loss = tf.reduce_mean(hidden)
        if mode == "infer":
            return TPUEstimatorSpec(mode, predictions={"hidden": hidden})
        if mode == "eval":
            return TPUEstimatorSpec(mode, loss=loss)
        optimizer = CrossShardOptimizer(v1.train.AdamOptimizer(0.001))
        train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
        return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return lower_engine_step(
        model_fn,
        input_fn_of_specs({"x": tf.TensorSpec([columns])}),
        mode,
        batch_size=rows * replicas,
        num_replicas=replicas,
    )


def profile_layers(folder: str) -> tuple[LoweredStep, StepReport]:
    """Compiles the training step of two layers for one v5e, with a profile in a folder."""
    step = lower_layers([1024, 512], rows=2048, columns=256)
    made = compile_and_report(
        [step],
        tpu_slice=find_slice("v5e:1x1"),
        name="layers",
        options=CHECK_ONLY,
        profile=folder,
    )
    return step, made.steps[0]


def lower_function(
    function: Callable[[tf.Tensor], tf.Tensor], *, shape: tuple[int, int] = (4, 8)
) -> LoweredStep:
    """Lowers the evaluation of a model that is a function of a variable.

    Args:
        function: Takes the variable's value, float32 of `shape`.
        shape: Rows of the batch, and columns.
    """

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> TPUEstimatorSpec:
        del labels, params
        kernel = v1.get_variable("kernel", [shape[1], shape[1]])
        loss = tf.reduce_mean(function(tf.matmul(features["x"], kernel)))
        return TPUEstimatorSpec(mode, loss=loss)

    return lower_engine_step(
        model_fn,
        input_fn_of_specs({"x": tf.TensorSpec([shape[1]])}),
        "eval",
        batch_size=shape[0],
        num_replicas=1,
    )
