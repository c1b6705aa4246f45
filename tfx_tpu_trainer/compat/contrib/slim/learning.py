"""The train op of `slim.learning`, and its loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.compat.contrib.slim.train_loop import train, train_step
from tfx_tpu_trainer.compat.contrib.training import train_op
from tfx_tpu_trainer.compat.contrib.training.train_op import clip_gradient_norms, multiply_gradients

v1 = tf.compat.v1

__all__ = [
    "clip_gradient_norms",
    "create_train_op",
    "multiply_gradients",
    "train",
    "train_step",
]


def create_train_op(
    total_loss: Any,
    optimizer: Any,
    global_step: Any = 0,
    update_ops: Any = None,
    variables_to_train: Sequence[tf.Variable] | None = None,
    clip_gradient_norm: float = 0,
    summarize_gradients: bool = False,
    gate_gradients: int = v1.train.Optimizer.GATE_OP,
    aggregation_method: Any = None,
    colocate_gradients_with_ops: bool = False,
    gradient_multipliers: Mapping[Any, Any] | None = None,
    check_numerics: bool = True,
) -> tf.Tensor:
    """Makes an op that runs the layers' updates, trains, and returns the loss.

    `tfx_tpu_trainer.compat.contrib.training.create_train_op` with two changes of gradients built in.

    Args:
        total_loss: The loss, a scalar.
        optimizer: An optimizer of TF 1.
        global_step: The step to count; `None` for none. Defaults to 0, meaning the graph's.
        update_ops: Ops that run before the loss. Defaults to `None`, those in
            `GraphKeys.UPDATE_OPS`.
        variables_to_train: The variables to train. Defaults to `None`, all trainable variables.
        clip_gradient_norm: The greatest norm of a gradient. Defaults to 0, no clipping.
        summarize_gradients: Whether to write summaries of them. Defaults to `False`.
        gate_gradients: As for `compute_gradients`. Defaults to `GATE_OP`.
        aggregation_method: As for `compute_gradients`. Defaults to `None`.
        colocate_gradients_with_ops: As for `compute_gradients`. Defaults to `False`.
        gradient_multipliers: Variable, or its name -> factor of its gradient. Defaults to `None`.
        check_numerics: Whether a loss that is not a number is an error. Defaults to `True`.

    Returns:
        The loss, after the update.

    Raises:
        ValueError: If there is nothing to train.
    """

    def transform(gradients: Any) -> Any:
        if gradient_multipliers:
            gradients = multiply_gradients(gradients, gradient_multipliers)
        if clip_gradient_norm > 0:
            gradients = clip_gradient_norms(gradients, clip_gradient_norm)
        return gradients

    return train_op.create_train_op(
        total_loss,
        optimizer,
        global_step,
        update_ops,
        variables_to_train,
        transform,
        summarize_gradients,
        gate_gradients,
        aggregation_method,
        colocate_gradients_with_ops,
        check_numerics,
    )
