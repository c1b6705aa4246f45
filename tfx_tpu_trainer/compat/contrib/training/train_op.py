"""A train op that runs the updates of the layers, and what is done to gradients before."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf

from tfx_tpu_trainer._support.waiting import said_while_waiting

v1 = tf.compat.v1
_logger = tf.get_logger()
_Gradients = list[tuple[Any, tf.Variable]]
# The argument's value that stands for the graph's own step.
_USE_GLOBAL_STEP: Final = 0


def create_train_op(
    total_loss: Any,
    optimizer: Any,
    global_step: Any = _USE_GLOBAL_STEP,
    update_ops: Any = None,
    variables_to_train: Sequence[tf.Variable] | None = None,
    transform_grads_fn: Callable[[_Gradients], _Gradients] | None = None,
    summarize_gradients: bool = False,
    gate_gradients: int = v1.train.Optimizer.GATE_OP,
    aggregation_method: Any = None,
    colocate_gradients_with_ops: bool = False,
    check_numerics: bool = True,
) -> tf.Tensor:
    """Makes an op that runs the layers' updates, trains, and returns the loss.

    Args:
        total_loss: The loss, a scalar.
        optimizer: An optimizer of TF 1.
        global_step: The step to count; `None` for none. Defaults to 0, meaning the graph's.
        update_ops: Ops that run before the loss. Defaults to `None`, those in
            `GraphKeys.UPDATE_OPS`.
        variables_to_train: The variables to train. Defaults to `None`, all trainable variables.
        transform_grads_fn: Changes the pairs of gradient and variable. Defaults to `None`.
        summarize_gradients: Whether to write summaries of them. Defaults to `False`.
        gate_gradients: As for `compute_gradients`. Defaults to `GATE_OP`.
        aggregation_method: As for `compute_gradients`. Defaults to `None`.
        colocate_gradients_with_ops: As for `compute_gradients`. Defaults to `False`.
        check_numerics: Whether a loss that is not a number is an error. Defaults to `True`.

    Returns:
        The loss, after the update. It is in `GraphKeys.TRAIN_OP`.

    Raises:
        ValueError: If there is nothing to train.
    """
    step = global_step
    if isinstance(global_step, int) and global_step == _USE_GLOBAL_STEP:
        step = v1.train.get_or_create_global_step()
    updates = v1.get_collection(v1.GraphKeys.UPDATE_OPS) if update_ops is None else list(update_ops)
    if updates:
        with tf.control_dependencies(updates):
            total_loss = tf.identity(total_loss)
    variables = v1.trainable_variables() if variables_to_train is None else variables_to_train
    if not variables:
        raise ValueError("Nothing to train: the graph has no trainable variables.")
    gradients = optimizer.compute_gradients(
        total_loss,
        variables,
        gate_gradients=gate_gradients,
        aggregation_method=aggregation_method,
        colocate_gradients_with_ops=colocate_gradients_with_ops,
    )
    if transform_grads_fn is not None:
        gradients = transform_grads_fn(gradients)
    if summarize_gradients:
        with v1.name_scope("summarize_grads"):
            add_gradients_summaries(gradients)
    update = optimizer.apply_gradients(gradients, global_step=step)
    with v1.name_scope("train_op"):
        if check_numerics:
            total_loss = tf.debugging.check_numerics(total_loss, "LossTensor is inf or nan")
        with tf.control_dependencies([update]):
            train_op = tf.identity(total_loss)
    v1.add_to_collection(v1.GraphKeys.TRAIN_OP, train_op)
    return train_op


def add_gradients_summaries(grads_and_vars: _Gradients) -> list[tf.Tensor]:
    """Writes a histogram and the norm of each gradient.

    Args:
        grads_and_vars: Pairs of gradient and variable.

    Returns:
        The summary ops.
    """
    made = []
    for gradient, variable in grads_and_vars:
        if gradient is None:
            _logger.info("Var %s has no gradient", variable.op.name)
            continue
        values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        made.append(v1.summary.histogram(f"{variable.op.name}_gradient", values))
        norm = tf.linalg.global_norm([values])
        made.append(v1.summary.scalar(f"{variable.op.name}_gradient_norm", norm))
    return made


def clip_gradient_norms(gradients_to_variables: _Gradients, max_norm: float) -> _Gradients:
    """Clips each gradient by its norm.

    Args:
        gradients_to_variables: Pairs of gradient and variable.
        max_norm: The greatest norm.

    Returns:
        Such pairs.
    """
    return [
        (_changed(gradient, lambda values: tf.clip_by_norm(values, max_norm)), variable)
        for gradient, variable in gradients_to_variables
    ]


def multiply_gradients(
    grads_and_vars: _Gradients, gradient_multipliers: Mapping[Any, Any]
) -> _Gradients:
    """Multiplies the gradients of some variables.

    Args:
        grads_and_vars: Pairs of gradient and variable.
        gradient_multipliers: Variable, or its name -> factor.

    Returns:
        Such pairs.

    Raises:
        ValueError: If there are no factors, or one is for a variable without a gradient.
    """
    if not isinstance(grads_and_vars, list):
        raise ValueError(f"grads_and_vars is a list of pairs; got {grads_and_vars!r}.")
    if not gradient_multipliers or not isinstance(gradient_multipliers, Mapping):
        raise ValueError(
            f"gradient_multipliers is a dict of at least one factor; got {gradient_multipliers!r}."
        )
    factors = {
        each if isinstance(each, str) else each.op.name: factor
        for each, factor in gradient_multipliers.items()
    }
    multiplied: _Gradients = []
    for gradient, variable in grads_and_vars:
        factor = factors.get(variable.op.name)
        if factor is not None:
            if gradient is None:
                raise ValueError(f"{variable.op.name} has no gradient that could be multiplied.")
            gradient = _changed(gradient, functools.partial(tf.multiply, factor))
        multiplied.append((gradient, variable))
    return multiplied


def _changed(gradient: Any, change: Callable[[Any], Any]) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(change(gradient.values), gradient.indices, gradient.dense_shape)
    return change(gradient)


def wait_for_new_checkpoint(
    checkpoint_dir: str,
    last_checkpoint: str | None = None,
    seconds_to_sleep: float = 1,
    timeout: float | None = None,
) -> str | None:
    """Waits until a folder has another checkpoint.

    Args:
        checkpoint_dir: The folder.
        last_checkpoint: The checkpoint that is known. Defaults to `None`.
        seconds_to_sleep: How often to look, in seconds. Defaults to 1.
        timeout: How long to wait, in seconds. Defaults to `None`, forever.

    Returns:
        The checkpoint; `None` where none came in time.
    """
    end = None if timeout is None else time.monotonic() + timeout
    with said_while_waiting(
        f"a new checkpoint in {checkpoint_dir}", change=f"The time limit is timeout={timeout}."
    ):
        while True:
            found = tf.train.latest_checkpoint(checkpoint_dir)
            if found is not None and found != last_checkpoint:
                return found
            if end is not None and time.monotonic() + seconds_to_sleep > end:
                return None
            time.sleep(seconds_to_sleep)
