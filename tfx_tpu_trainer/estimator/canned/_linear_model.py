"""The linear model: a weighted sum of feature columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import tensorflow as tf

from tfx_tpu_trainer._support.imports import without_notice
from tfx_tpu_trainer.estimator._mode_keys import ModeKeys
from tfx_tpu_trainer.estimator._on_cores import is_on_cores
from tfx_tpu_trainer.estimator.canned import _columns as checks
from tfx_tpu_trainer.estimator.canned._partitions import input_partitioner
from tfx_tpu_trainer.estimator.canned._train_ops import (
    Trained,
    linear_rate,
    train_op_fn_of,
    v1_train_op_fn_of,
)
from tfx_tpu_trainer.estimator.heads._optimizers import optimizer_instance, v1_optimizer_instance

v1 = tf.compat.v1

RATE_LIMIT: Final = 0.2


class LinearLogits(NamedTuple):
    """What a linear model gives.

    Attributes:
        logits: Float tensor [batch, units].
        variables: Its variables, the bias last.
    """

    logits: tf.Tensor
    variables: list[tf.Variable]


class Linear(NamedTuple):
    """What a linear model is made of.

    Attributes:
        columns: Feature columns, checked.
        optimizer: A name, an instance, a function, or `None` for Ftrl.
        sparse_combiner: `"mean"`, `"sqrtn"` or `"sum"`.
    """

    columns: Sequence[Any]
    optimizer: Any
    sparse_combiner: str

    def logits(self, features: Any, units: int) -> LinearLogits:
        """Makes the model in a variable scope `linear_model` and sums it up."""
        return linear_logits(
            features, columns=self.columns, units=units, sparse_combiner=self.sparse_combiner
        )


def linear_logits(
    features: Any, *, columns: Sequence[Any], units: int, sparse_combiner: str
) -> LinearLogits:
    """Makes a linear model in a variable scope `linear_model` and sums it up."""
    column_variables: dict[Any, Any] = {}
    logits = without_notice(v1.feature_column.linear_model)(
        features,
        columns,
        units=units,
        sparse_combiner=sparse_combiner,
        cols_to_vars=column_variables,
    )
    bias = _parts(column_variables.pop("bias"))
    # In the order of the columns' names, as the original has them.
    by_name = sorted(column_variables.items(), key=lambda item: item[0].name)
    weights = [part for _, variables in by_name for part in _parts(variables)]
    return LinearLogits(logits, [*weights, *bias])


def summarize_weights(made: LinearLogits, units: int) -> None:
    """Summarizes a linear model's bias and how many of its weights are zero; not on cores."""
    if is_on_cores():
        return
    *weights, bias = made.variables
    if units > 1:
        v1.summary.histogram("bias", bias)
    else:
        v1.summary.scalar("bias", bias[0])
    zeros = [tf.cast(tf.math.count_nonzero(tf.equal(each, 0.0)), tf.float32) for each in weights]
    sizes = [tf.cast(tf.size(each), tf.float32) for each in weights]
    v1.summary.scalar("fraction_of_zero_weights", tf.add_n(zeros) / tf.add_n(sizes))


def linear_model_fn(*, head: Any, linear: Linear) -> Callable[..., Any]:
    """Returns the model_fn of the linear estimators of `tf.estimator`."""

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        del config
        checks.check_features(features)
        with v1.variable_scope("linear", use_resource=True, auxiliary_name_scope=False):
            made = linear.logits(features, head.logits_dimension)
        summarize_weights(made, head.logits_dimension)
        train_op_fn = None
        if mode == ModeKeys.TRAIN:
            instance = optimizer_instance(linear.optimizer or "Ftrl", _rate(linear))
            train_op_fn = train_op_fn_of(head, [Trained(instance, made.variables)])
        return head.create_estimator_spec(
            features=features,
            mode=mode,
            labels=labels,
            logits=made.logits,
            train_op_fn=train_op_fn,
        )

    return model_fn


def v1_linear_model_fn(*, head: Any, linear: Linear, partitioner: Any) -> Callable[..., Any]:
    """Returns the model_fn of the linear estimators of `tf.compat.v1.estimator`."""

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        checks.check_features(features)
        with v1.variable_scope("linear", partitioner=input_partitioner(config, partitioner)):
            made = linear.logits(features, head.logits_dimension)
            summarize_weights(made, head.logits_dimension)
            instance = v1_optimizer_instance(linear.optimizer or "Ftrl", _rate(linear))
            return head.create_estimator_spec(
                features=features,
                mode=mode,
                labels=labels,
                logits=made.logits,
                train_op_fn=v1_train_op_fn_of(head, [Trained(instance, None)]),
            )

    return model_fn


def _rate(linear: Linear) -> float:
    return RATE_LIMIT if linear.optimizer else linear_rate(RATE_LIMIT, len(linear.columns))


def _parts(variables: Any) -> list[tf.Variable]:
    """Variables one by one: a cut one is given as the list of its parts."""
    if isinstance(variables, tf.Variable):
        return [variables]
    return [part for each in variables for part in _parts(each)]
