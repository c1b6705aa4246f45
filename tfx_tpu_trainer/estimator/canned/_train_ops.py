"""From a canned model's loss to the op of a training step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_tpu_trainer.estimator.heads import Head, _train_op

v1 = tf.compat.v1


class Trained(NamedTuple):
    """Variables and what trains them.

    Attributes:
        optimizer: A Keras 2 legacy or a `tf.compat.v1.train` optimizer.
        variables: What it changes; `None`, of a `tf.compat.v1.train` optimizer only, leaves it to
            the optimizer, as the original does for a model of one part: programs wrap optimizers
            whose `minimize` takes no `var_list`.
    """

    optimizer: Any
    variables: Sequence[tf.Variable] | None


def linear_rate(limit: float, number_of_columns: int) -> float:
    """Returns the default rate of a linear model: the more columns, the lower."""
    return min(limit, 1.0 / math.sqrt(number_of_columns))


def train_op_fn_of(
    head: Head, parts: Sequence[Trained], updates: Sequence[tf.Operation] = ()
) -> Callable[[tf.Tensor], Any]:
    """Returns the function from the loss to the train op of an estimator of `tf.estimator`."""

    def train_op_fn(loss: tf.Tensor) -> Any:
        of_keras = _train_op.per_replica(loss, head.loss_reduction)
        steps = [
            _train_op.minimize(
                part.optimizer,
                loss if isinstance(part.optimizer, v1.train.Optimizer) else of_keras,
                part.variables,
                global_step=None if number else v1.train.get_or_create_global_step(),
                loss_reduction=head.loss_reduction,
            )
            for number, part in enumerate(parts)
        ]
        return tf.group(*steps, *updates)

    return train_op_fn


def v1_train_op_fn_of(head: Head, parts: Sequence[Trained]) -> Callable[[tf.Tensor], Any]:
    """Returns the function from the loss to the train op of an estimator of `tf.compat.v1`.

    The global step goes up once all parts are trained. Updates of moving averages are those in
    the collection `UPDATE_OPS`.
    """

    def train_op_fn(loss: tf.Tensor) -> Any:
        only = len(parts) == 1
        steps = [
            _train_op.minimize(
                part.optimizer,
                loss,
                part.variables,
                global_step=v1.train.get_global_step() if only else None,
                loss_reduction=head.loss_reduction,
            )
            for part in parts
        ]
        if not only:
            with tf.control_dependencies([tf.group(*steps)]):
                steps = [v1.assign_add(v1.train.get_global_step(), 1).op]
        return tf.group(*steps, *v1.get_collection(v1.GraphKeys.UPDATE_OPS))

    return train_op_fn


def trainable_variables(scope: v1.VariableScope) -> list[tf.Variable]:
    """Returns the trainable variables of a variable scope, parts of cut ones each on its own."""
    return list(v1.get_collection(v1.GraphKeys.TRAINABLE_VARIABLES, scope=f"{scope.name}/"))
