"""Trains embedding tables with the optimizers in their parameters."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.template import HostFunction
from tfx_tpu_trainer.estimator.tpu.embedding.optimization_parameters import (
    AdagradParameters,
    AdamParameters,
    FtrlParameters,
    MomentumParameters,
    OptimizationParameters,
    ProximalAdagradParameters,
    RMSPropParameters,
    StochasticGradientDescentParameters,
)
from tfx_tpu_trainer.estimator.tpu.embedding.spec import EmbeddingPlan

v1 = tf.compat.v1


def make_table_update(
    plan: EmbeddingPlan,
    tables: Mapping[str, tf.Variable],
    gradients: Mapping[str, tf.IndexedSlices],
    step: tf.Tensor,
) -> HostFunction:
    """Makes a function that trains the tables, once per step, from all cores' gradients."""
    # The function gets the rows of all cores concatenated. Those of one id are summed before the optimizer acts, so a
    # table trains like an ordinary embedding on the global batch.
    parameters = {name: parameters_of(plan, name) for name in gradients}
    tensors: dict[str, tf.Tensor] = {"step": step}
    for index, gradient in enumerate(gradients.values()):
        tensors[f"values_{index}"] = gradient.values
        tensors[f"rows_{index}"] = gradient.indices

    # A host function gets all cores' tensors concatenated: with two cores of one row each, `rows` [3] and [3] arrive as
    # [3, 3], and `step` [7] and [7] as [7, 7], so step[0] below is the value.
    def update(step: tf.Tensor, **slices: tf.Tensor) -> list[tf.Operation]:
        step, rates = step[0], {}
        multiplier = None
        if plan.gradient_multiplier_fn is not None:
            multiplier = tf.cast(plan.gradient_multiplier_fn(step), tf.float32)
        updates = []
        for index, name in enumerate(gradients):
            values, rows = slices[f"values_{index}"], slices[f"rows_{index}"]
            if multiplier is not None:
                values *= multiplier
            config = plan.tables[name]
            rate = parameters[name].learning_rate
            if config.learning_rate_fn is not None:
                # Tables with the same function share its ops.
                if config.learning_rate_fn not in rates:
                    rates[config.learning_rate_fn] = config.learning_rate_fn(step)
                rate = rates[config.learning_rate_fn]
            updates.append(
                _train_table(
                    tables[name],
                    _sum_of_each_row(values, rows),
                    parameters[name],
                    rate=tf.cast(rate, tf.float32),
                    step=step,
                )
            )
        return updates

    return HostFunction("embedding_update", update, tensors)


def parameters_of(plan: EmbeddingPlan, table: str) -> OptimizationParameters:
    """Returns a table's optimization parameters, including its learning rate."""
    config = plan.tables[table]
    parameters = config.optimization_parameters or plan.parameters
    if not isinstance(parameters, OptimizationParameters):
        raise ValueError(
            f"`optimization_parameters` is missing for table {table}: give them to "
            "EmbeddingConfigSpec or to its TableConfig, as one of the parameter classes of "
            f"tfx_tpu_trainer.estimator.tpu.experimental; got {parameters!r}."
        )
    if config.learning_rate is not None:
        parameters = dataclasses.replace(parameters, learning_rate=config.learning_rate)
    if isinstance(parameters, FtrlParameters) and parameters.multiply_linear_by_learning_rate:
        raise ValueError(
            f"Table {table}: multiply_linear_by_learning_rate=True can't be emulated; leave it out."
        )
    return parameters


def _sum_of_each_row(values: tf.Tensor, rows: tf.Tensor) -> tf.IndexedSlices:
    # Rows [3, 5, 3] with gradients a, b, c become rows [3, 5] with a + c, b. Otherwise gradients would be clipped
    # before they are summed, and `scatter_update` would keep one of a and c.
    unique, place = tf.unique(rows)
    return tf.IndexedSlices(
        tf.math.unsorted_segment_sum(values, place, tf.shape(unique)[0]), unique
    )


def _train_table(
    table: tf.Variable,
    gradient: tf.IndexedSlices,
    parameters: OptimizationParameters,
    *,
    rate: tf.Tensor,
    step: tf.Tensor,
) -> tf.Operation:
    """Makes one step: decays the rows, moves them by the optimizer, and clips them."""
    rows = gradient.indices
    gradient = tf.IndexedSlices(
        _clip(gradient.values, parameters.clip_gradient_min, parameters.clip_gradient_max), rows
    )
    # Each part waits for the previous one, since all change the same rows: decay, move, clip.
    before = []
    if parameters.weight_decay_factor is not None:
        factor = tf.constant(parameters.weight_decay_factor)
        if parameters.multiply_weight_decay_factor_by_learning_rate:
            factor *= rate
        before.append(v1.scatter_sub(table, rows, factor * tf.gather(table, rows)))
    with tf.control_dependencies(before):
        if isinstance(parameters, AdamParameters):
            adam = SparseAdam(
                beta1=parameters.beta1,
                beta2=parameters.beta2,
                epsilon=parameters.epsilon,
                lazy=parameters.lazy_adam,
                sum_inside_sqrt=parameters.sum_inside_sqrt,
            )
            moved = adam.apply(table, gradient, rate=rate, step=step)
        else:
            moved = _optimizer(parameters, rate).apply_gradients([(gradient, table)])
    least, most = parameters.clip_weight_min, parameters.clip_weight_max
    if least is None and most is None:
        return moved
    with tf.control_dependencies([moved]):
        return tf.group(v1.scatter_update(table, rows, _clip(tf.gather(table, rows), least, most)))


def _optimizer(parameters: Any, rate: tf.Tensor) -> v1.train.Optimizer:
    """Returns TensorFlow's own optimizer with these parameters; its slots have their usual names."""
    if isinstance(parameters, StochasticGradientDescentParameters):
        return v1.train.GradientDescentOptimizer(rate)
    if isinstance(parameters, AdagradParameters):
        return v1.train.AdagradOptimizer(
            rate, initial_accumulator_value=parameters.initial_accumulator
        )
    if isinstance(parameters, ProximalAdagradParameters):
        return v1.train.ProximalAdagradOptimizer(
            rate,
            initial_accumulator_value=parameters.initial_accumulator,
            l1_regularization_strength=parameters.l1_regularization_strength,
            l2_regularization_strength=parameters.l2_regularization_strength,
        )
    if isinstance(parameters, FtrlParameters):
        return v1.train.FtrlOptimizer(
            rate,
            learning_rate_power=parameters.learning_rate_power,
            initial_accumulator_value=parameters.initial_accumulator_value,
            l1_regularization_strength=parameters.l1_regularization_strength,
            l2_regularization_strength=parameters.l2_regularization_strength,
            beta=parameters.beta,
        )
    if isinstance(parameters, MomentumParameters):
        return v1.train.MomentumOptimizer(
            rate, parameters.momentum, use_nesterov=parameters.use_nesterov
        )
    if isinstance(parameters, RMSPropParameters):
        return v1.train.RMSPropOptimizer(
            rate, parameters.rho, momentum=parameters.momentum, epsilon=parameters.epsilon
        )
    raise ValueError(f"optimization_parameters of an unknown kind: {parameters!r}.")


def _clip(values: tf.Tensor, least: float | None, most: float | None) -> tf.Tensor:
    if least is not None:
        values = tf.maximum(values, least)
    return values if most is None else tf.minimum(values, most)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparseAdam:
    """Adam, with options for the rows that a step does not touch."""

    # The bias of the moments is corrected by the step's number instead of by powers kept in variables, so a table's
    # checkpoint has the same variables as an ordinary embedding's.

    beta1: float  # Decay of the first moment.
    beta2: float  # Decay of the second moment.
    epsilon: float  # Keeps the divisor from zero.
    # Whether moments decay, and rows move, only where there is a gradient; else everywhere, as with
    # `tf.compat.v1.train.AdamOptimizer`.
    lazy: bool
    sum_inside_sqrt: bool  # Whether the divisor is sqrt(v + epsilon^2), not sqrt(v) + epsilon.

    def apply(
        self, table: tf.Variable, gradient: tf.IndexedSlices, *, rate: tf.Tensor, step: tf.Tensor
    ) -> tf.Operation:
        """Makes one step; the moments' variables are in the default graph."""
        first, second = _slot(table, "Adam"), _slot(table, "Adam_1")
        number = tf.cast(step + 1, table.dtype)
        rate *= tf.sqrt(1 - self.beta2**number) / (1 - self.beta1**number)
        moments = [
            self._decayed(first, self.beta1, gradient.values, gradient.indices),
            self._decayed(second, self.beta2, tf.square(gradient.values), gradient.indices),
        ]
        with tf.control_dependencies(moments):
            if self.lazy:
                rows = gradient.indices
                moved = self._move(tf.gather(first, rows), tf.gather(second, rows))
                change = v1.scatter_sub(table, rows, rate * moved)
            else:
                moved = self._move(first.read_value(), second.read_value())
                change = table.assign_sub(rate * moved, read_value=False)
        return tf.group(change)

    def _decayed(
        self, moment: tf.Variable, decay: float, values: tf.Tensor, rows: tf.Tensor
    ) -> tf.Operation:
        added = (1 - decay) * values
        if self.lazy:
            # A row last touched ten steps ago decays once now, not ten times.
            kept = decay * tf.gather(moment, rows)
            return tf.group(v1.scatter_update(moment, rows, kept + added))
        with tf.control_dependencies([moment.assign(decay * moment, read_value=False)]):
            return tf.group(v1.scatter_add(moment, rows, added))

    def _move(self, first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
        if self.sum_inside_sqrt:
            return first / tf.sqrt(second + self.epsilon**2)
        return first / (tf.sqrt(second) + self.epsilon)


def _slot(table: tf.Variable, name: str) -> tf.Variable:
    """Makes a variable shaped like the table, named like a slot of `tf.compat.v1.train.AdamOptimizer`."""
    return v1.get_variable(
        f"{table.op.name}/{name}",
        shape=table.shape,
        dtype=table.dtype,
        initializer=v1.zeros_initializer(),
        trainable=False,
    )
