"""The optimizer of a compiled Keras model, as one that trains in an estimator's graph."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator.keras.eagerly import eagerly
from tfx_tpu_trainer.estimator.keras.keras_model import KerasModel, Named, is_variable
from tfx_tpu_trainer.estimator.keras.stand_ins import StandIns, unused_name

v1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class TracedOptimizer:
    """One of today's Keras, traced with the step: its variables are eager ones.

    Attributes:
        optimizer: The optimizer, built.
        variables: What it tracks, the model's own variables among them; the count of its steps is
            left out.
        iterations: The count of its steps.
    """

    optimizer: Any
    variables: Sequence[Named]
    iterations: Any

    def add_stand_ins(self, stand_ins: StandIns, *, counts_steps: bool) -> None:
        """Makes the stand-ins of its variables.

        Args:
            stand_ins: Where to.
            counts_steps: Whether each step raises its count by one, so that it can be the global
                step.
        """
        if counts_steps:
            stand_ins.bind(self.iterations, v1.train.get_or_create_global_step())
        taken = {variable.op.name for variable in v1.global_variables()}
        for named in self.variables:
            if stand_ins.of(named.variable) is None:
                name = unused_name(named.name, taken)
                stand_ins.add(name, named.variable, first_value=eagerly(named.variable.numpy))


@dataclasses.dataclass(frozen=True)
class GraphOptimizer:
    """One that works in graphs: of `tf.compat.v1.train`, or a legacy one of Keras 2.

    Attributes:
        optimizer: The optimizer.
    """

    optimizer: Any

    def apply(self, pairs: Sequence[tuple[Any, tf.Variable]]) -> tf.Operation:
        """Gives the op that applies gradients and raises the global step.

        Args:
            pairs: Gradients, of all cores together where there are several, and variables of the
                default graph.
        """
        pairs = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        global_step = v1.train.get_or_create_global_step()
        with v1.name_scope(""), v1.name_scope("training"):
            if isinstance(self.optimizer, v1.train.Optimizer):
                return self.optimizer.apply_gradients(pairs, global_step=global_step)
            self.optimizer.iterations = global_step
            return self.optimizer.apply_gradients(pairs)


def make_optimizer(model: KerasModel) -> TracedOptimizer | GraphOptimizer:
    """Gives an optimizer for one graph with the settings of the model's own, which stays as it is.

    Args:
        model: The model, built.

    Returns:
        The optimizer.

    Raises:
        ValueError: If it can't work in a graph, or can't be made from its config.
    """
    optimizer = model.optimizer
    if isinstance(optimizer, (list, tuple)):
        raise ValueError(
            f"The Keras model has {len(optimizer)} optimizers; an estimator trains with one."
        )
    inner = getattr(optimizer, "optimizer", None)
    if isinstance(inner, v1.train.Optimizer):
        return GraphOptimizer(_unwrapped(inner))
    if _is_legacy(optimizer):
        if hasattr(optimizer, "get_scaled_loss"):
            raise ValueError(
                f"{type(optimizer).__name__} around a legacy optimizer scales the loss outside of "
                "its graph. Wrap a tf_keras.optimizers.Optimizer instead of a legacy one."
            )
        return GraphOptimizer(eagerly(model.fresh_optimizer))
    return eagerly(_built, model)


def _built(model: KerasModel) -> TracedOptimizer:
    optimizer = model.fresh_optimizer()
    optimizer.build(model.trainable_variables)
    iterations = model.raw(optimizer.iterations)
    variables = [
        Named(
            f"training/{getattr(each, 'path', f'{optimizer.name}/{each.name}')}",
            model.raw(each),
            False,
        )
        for each in tf.train.TrackableView(optimizer).descendants()
        if is_variable(each)
    ]
    return TracedOptimizer(
        optimizer=optimizer,
        variables=[each for each in variables if each.variable is not iterations],
        iterations=iterations,
    )


def _is_legacy(optimizer: Any) -> bool:
    keras2 = sys.modules.get("tf_keras")
    return keras2 is not None and isinstance(optimizer, keras2.optimizers.legacy.Optimizer)


def _unwrapped(optimizer: v1.train.Optimizer) -> v1.train.Optimizer:
    """Gives the optimizer in a CrossShardOptimizer: gradients of cores are put together before."""
    if isinstance(optimizer, v1.tpu.CrossShardOptimizer):
        raise ValueError(
            "The Keras model is compiled with a CrossShardOptimizer. Compile it with the optimizer "
            "inside: keras_to_estimator puts the gradients of cores together itself."
        )
    return optimizer
