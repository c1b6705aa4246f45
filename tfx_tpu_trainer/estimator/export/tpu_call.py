"""A computation as one TPU program that any core of the host can be asked to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.engine import tf_private_tpu

v1 = tf.compat.v1


def call_on_tpu(computation: Callable[[], Sequence[tf.Tensor]]) -> list[tf.Tensor]:
    """Builds a computation for the TPU and calls it once from the default graph.

    The computation is rewritten for the TPU inside of a function, and `TPUPartitionedCall` runs
    that function on the core which `TPUOrdinalSelector` names: calls go round the cores of the
    host. Variables are made in the default graph, not in the function, so that they are saved
    and restored as those of any graph.

    Nothing here needs a TPU; running the result does.

    Args:
        computation: Builds the ops. What it uses of the default graph is fed into the call.

    Returns:
        One tensor of the default graph for each tensor that the computation returned.

    Raises:
        ValueError: If the computation returns nothing.
    """

    def tpu_program() -> Sequence[tf.Tensor]:
        with v1.variable_creator_scope(_make_variable_outside):
            results = v1.tpu.rewrite(computation)
        tf_private_tpu.prune_unconnected_ops(v1.get_default_graph())
        return [result for result in results if isinstance(result, tf.Tensor)]

    program = tf.function(tpu_program, autograph=False).get_concrete_function()
    if not program.outputs:
        raise ValueError(
            "The computation for the TPU returns no tensor. Return what the host shall see."
        )
    results = tf.raw_ops.TPUPartitionedCall(
        args=program.captured_inputs,
        device_ordinal=tf.raw_ops.TPUOrdinalSelector(),
        Tout=[output.dtype for output in program.outputs],
        f=program,
    )
    for result, output in zip(results, program.outputs, strict=True):
        result.set_shape(output.shape)
    return results


def _make_variable_outside(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
    """Makes a variable in the graph around the function.

    `next_creator` is left aside: it is that of tf.function, which makes variables of its own kind
    in the function's graph. The creators of the outer graph are asked instead.
    """
    del next_creator
    kwargs.pop("experimental_enable_variable_lifting", None)
    initial_value = kwargs.get("initial_value")
    if isinstance(initial_value, tf.Tensor):
        # A tensor of the function's graph cannot initialise a variable outside of it. It need
        # not: a variable that is exported takes its value from the checkpoint.
        shape, dtype = initial_value.shape, kwargs.get("dtype") or initial_value.dtype
        kwargs["initial_value"] = lambda: tf.zeros(shape, dtype)
    with tf.init_scope():
        return v1.Variable(**kwargs)
