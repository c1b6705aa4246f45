"""From a loss and an optimizer to the op that makes one step of training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import tensorflow as tf

from tfx_tpu_trainer.estimator._on_cores import is_on_cores, on_cores
from tfx_tpu_trainer.estimator.heads import _losses
from tfx_tpu_trainer.estimator.heads._optimizers import (
    KerasOptimizer,
    makes_its_updates,
    optimizer_instance,
)

__all__ = [
    "check_one_is_given",
    "check_variables",
    "head_train_op",
    "is_on_cores",
    "minimize",
    "on_cores",
]

v1 = tf.compat.v1

_SUMMED: Final = (_losses.SUM, v1.losses.Reduction.SUM)


def minimize(
    optimizer: Any,
    loss: tf.Tensor,
    variables: Sequence[tf.Variable] | None = None,
    *,
    global_step: tf.Variable | None,
    loss_reduction: str,
) -> tf.Operation:
    """Returns the op that makes a loss smaller."""
    if isinstance(optimizer, v1.train.Optimizer):
        chosen = _for_cores(optimizer, loss_reduction) if is_on_cores() else optimizer
        if variables is None:
            return chosen.minimize(loss, global_step=global_step)
        return chosen.minimize(loss, global_step=global_step, var_list=list(variables))
    trained = check_variables(variables)
    counts_itself = global_step is not None and _counts_itself(optimizer, global_step)
    if is_on_cores():
        if makes_its_updates(optimizer):
            raise ValueError(
                f"The optimizer {type(optimizer).__name__} has its own get_updates, whose "
                "gradients can't be combined on TPU cores. Give a train_op_fn, or a "
                "CrossShardOptimizer."
            )
        step = _for_cores(KerasOptimizer(optimizer), loss_reduction).minimize(
            loss, var_list=trained
        )
    else:
        step = optimizer.get_updates(loss, trained)[0]
    if not counts_itself:
        return step
    with tf.control_dependencies([step]):
        return v1.assign_add(global_step, 1).op


def _counts_itself(optimizer: Any, global_step: tf.Variable) -> bool:
    """Makes the global step an optimizer's count of steps, before anything reads `iterations`."""
    try:
        optimizer.iterations = global_step
    except RuntimeError:
        return optimizer.iterations is not global_step
    except AttributeError:
        # Keras 3's can't be set: a `get_updates` of one must count by itself.
        return False
    return False


def check_variables(variables: Any) -> list[tf.Variable]:
    """Returns the variables that a Keras optimizer trains, as a list."""
    if variables is None:
        raise ValueError(
            "trainable_variables cannot be None. Given None; a Keras optimizer needs them, for "
            "instance tf.compat.v1.trainable_variables()."
        )
    if not isinstance(variables, (list, tuple)):
        raise ValueError(
            f"trainable_variables should be a list or a tuple. Given type: {type(variables)}."
        )
    return list(variables)


def _check_variables_of_v1(optimizer: v1.train.Optimizer, variables: Any) -> None:
    """Checks what a v1 optimizer trains; the original takes none of these, and says so first."""
    if variables is not None and not (isinstance(variables, (list, tuple)) and variables):
        raise ValueError(
            "The given optimizer is not a tf.keras.optimizers.Optimizer instance. Received "
            f"optimizer of type {type(optimizer)}, which can train as well, but "
            "trainable_variables should be a list or a tuple with variables in it. Given: "
            f"{variables!r}. Leave it out to train all trainable variables."
        )


def head_train_op(
    loss: tf.Tensor,
    *,
    optimizer: Any,
    train_op_fn: Callable[[tf.Tensor], Any] | None,
    trainable_variables: Sequence[tf.Variable] | None,
    update_ops: Sequence[Any] | None,
    loss_reduction: str,
) -> Any:
    """Returns the train op of a head of `tf.estimator`."""
    if update_ops is not None and not isinstance(update_ops, (list, tuple)):
        raise ValueError(f"update_ops should be a list or a tuple. Given type: {type(update_ops)}.")
    # The names of an optimizer's variables begin with this scope, in checkpoints of the original.
    with v1.name_scope(""), v1.name_scope("training"):
        if check_one_is_given(optimizer, train_op_fn) is train_op_fn:
            train_op = train_op_fn(loss)
        else:
            optimizer = optimizer_instance(optimizer, word="optimizer")
            if isinstance(optimizer, v1.train.Optimizer):
                _check_variables_of_v1(optimizer, trainable_variables)
            if not isinstance(optimizer, v1.train.Optimizer):
                loss = per_replica(loss, loss_reduction)
            train_op = minimize(
                optimizer,
                loss,
                trainable_variables,
                global_step=v1.train.get_or_create_global_step(),
                loss_reduction=loss_reduction,
            )
        return train_op if update_ops is None else tf.group(train_op, *update_ops)


def check_one_is_given(optimizer: Any, train_op_fn: Any) -> Any:
    """Returns whichever of the two is given."""
    if optimizer is not None and train_op_fn is not None:
        raise ValueError(
            "train_op_fn and optimizer cannot both be set: "
            f"train_op_fn={train_op_fn!r}, optimizer={optimizer!r}."
        )
    if optimizer is None and train_op_fn is None:
        raise ValueError("train_op_fn and optimizer cannot both be None. Give one for training.")
    return train_op_fn if optimizer is None else optimizer


def _for_cores(optimizer: v1.train.Optimizer, loss_reduction: str) -> v1.train.Optimizer:
    if isinstance(optimizer, v1.tpu.CrossShardOptimizer):
        return optimizer
    reduction = v1.losses.Reduction.SUM if loss_reduction in _SUMMED else v1.losses.Reduction.MEAN
    return v1.tpu.CrossShardOptimizer(optimizer, reduction=reduction)


def per_replica(loss: tf.Tensor, loss_reduction: str) -> tf.Tensor:
    """Returns the loss that a Keras optimizer minimizes: it sums gradients over a strategy's replicas."""
    # On cores a CrossShardOptimizer divides.
    replicas = 1 if is_on_cores() else tf.distribute.get_strategy().num_replicas_in_sync
    if replicas > 1 and loss_reduction == _losses.SUM_OVER_BATCH_SIZE:
        return loss / replicas
    return loss
