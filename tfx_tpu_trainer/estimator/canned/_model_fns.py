"""Parts that the model_fns of all canned estimators share: checks, partitioners, train ops."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import tensorflow as tf

from tfx_tpu_trainer.estimator.heads import Head, _training

v1 = tf.compat.v1

ModelFn = Callable[..., Any]
# An optimizer of `tf.compat.v1.estimator`: a name, an optimizer, or a function that returns one.
V1Optimizer: TypeAlias = str | v1.train.Optimizer | Callable[[], v1.train.Optimizer]

# In bytes; smaller variables of an input layer or a linear model are not split.
_LEAST_SLICE: Final = 64 << 20


def check_features(features: Any) -> None:
    """Checks the features from input_fn."""
    if not isinstance(features, Mapping):
        raise ValueError(
            f"features should be a dictionary of `Tensor`s. Given type: {type(features)}. Let "
            "input_fn return a dict keyed by the names of the feature columns."
        )


# V1 estimators split variables over parameter servers. Without servers nothing is split, but as in the original the
# partitioner is used, so that the names of optimizer slots are those in the original's checkpoints:
# `linear/linear_model/age/weights/part_0/Ftrl`.
def input_partitioner(config: Any, given: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Returns the partitioner of an input layer or a linear model."""
    return given or v1.min_max_variable_partitioner(
        max_partitions=_servers(config), min_slice_size=_LEAST_SLICE
    )


def hidden_partitioner(config: Any) -> Callable[..., Any]:
    """Returns the partitioner of hidden layers."""
    return v1.min_max_variable_partitioner(max_partitions=_servers(config))


def _servers(config: Any) -> int:
    return config.num_ps_replicas if config else 0


class Trained(NamedTuple):
    """Variables and their optimizer."""

    # A Keras 2 legacy or a `tf.compat.v1.train` optimizer.
    optimizer: Any
    # `None` lets a `tf.compat.v1.train` optimizer choose them, as the original does for a model of one part: programs
    # wrap optimizers whose `minimize` takes no `var_list`.
    variables: Sequence[tf.Variable] | None


def linear_rate(limit: float, number_of_columns: int) -> float:
    """Returns a linear model's default rate, which falls with the number of columns."""
    return min(limit, 1.0 / math.sqrt(number_of_columns))


def train_op_fn_of(
    head: Head, parts: Sequence[Trained], updates: Sequence[tf.Operation] = ()
) -> Callable[[tf.Tensor], Any]:
    """Returns the function from the loss to the train op of an estimator of `tf.estimator`."""

    def train_op_fn(loss: tf.Tensor) -> Any:
        of_keras = _training.per_replica(loss, head.loss_reduction)
        steps = [
            _training.minimize(
                part.optimizer,
                loss if isinstance(part.optimizer, v1.train.Optimizer) else of_keras,
                part.variables,
                # The first optimizer alone counts the step.
                global_step=None if number else v1.train.get_or_create_global_step(),
                loss_reduction=head.loss_reduction,
            )
            for number, part in enumerate(parts)
        ]
        return tf.group(*steps, *updates)

    return train_op_fn


def v1_train_op_fn_of(head: Head, parts: Sequence[Trained]) -> Callable[[tf.Tensor], Any]:
    """Returns the function from the loss to the train op of an estimator of `tf.compat.v1`.

    All parts train before the global step is raised. Updates of averages are in `UPDATE_OPS`.
    """

    def train_op_fn(loss: tf.Tensor) -> Any:
        only = len(parts) == 1
        steps = [
            _training.minimize(
                part.optimizer,
                loss,
                part.variables,
                global_step=v1.train.get_global_step() if only else None,
                loss_reduction=head.loss_reduction,
            )
            for part in parts
        ]
        # With two optimizers, neither may raise the step while the other still reads it for a decaying rate.
        if not only:
            with tf.control_dependencies([tf.group(*steps)]):
                steps = [v1.assign_add(v1.train.get_global_step(), 1).op]
        return tf.group(*steps, *v1.get_collection(v1.GraphKeys.UPDATE_OPS))

    return train_op_fn


def trainable_variables(scope: v1.VariableScope) -> list[tf.Variable]:
    """Returns the trainable variables of a scope; of a partitioned one, each part."""
    return list(v1.get_collection(v1.GraphKeys.TRAINABLE_VARIABLES, scope=f"{scope.name}/"))
