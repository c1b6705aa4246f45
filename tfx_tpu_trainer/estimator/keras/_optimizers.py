"""Makes optimizers of compiled Keras models that train in an estimator's graph."""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._keras_in_model_fn import is_of_this_call
from tfx_tpu_trainer.estimator.keras._keras_model import KerasModel, Named, is_variable
from tfx_tpu_trainer.estimator.keras._tf_private import eagerly
from tfx_tpu_trainer.estimator.keras._trace import StandIns, unused_name

v1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class TracedOptimizer:
    """A built optimizer of today's Keras, traced with the step; its variables are eager."""

    optimizer: Any
    # Its tracked variables, including the model's, without its count of steps.
    variables: Sequence[Named]
    iterations: Any  # The count of its steps.

    def add_stand_ins(self, stand_ins: StandIns, *, counts_steps: bool) -> None:
        """Makes the stand-ins of its variables."""
        if counts_steps:
            stand_ins.bind(self.iterations, v1.train.get_or_create_global_step())
        taken = {variable.op.name for variable in v1.global_variables()}
        for named in self.variables:
            if stand_ins.of(named.variable) is None:
                name = unused_name(named.name, taken)
                stand_ins.add(name, named.variable, first_value=eagerly(named.variable.numpy))


@dataclasses.dataclass(frozen=True)
class GraphOptimizer:
    """An optimizer for graphs: of `tf.compat.v1.train`, or a legacy one of Keras 2."""

    optimizer: Any

    def apply(self, pairs: Sequence[tuple[Any, tf.Variable]]) -> tf.Operation:
        """Returns the op that applies gradients and raises the global step."""
        with v1.name_scope(""), v1.name_scope("training"):
            return self.apply_part(pairs, v1.train.get_or_create_global_step())

    def apply_part(
        self, pairs: Sequence[tuple[Any, tf.Variable]], global_step: tf.Variable | None
    ) -> tf.Operation:
        """Returns the op that applies gradients, in this name scope."""
        pairs = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        if isinstance(self.optimizer, v1.train.Optimizer):
            return self.optimizer.apply_gradients(pairs, global_step=global_step)
        # Otherwise `keras_optimizers_train` would remove the optimizer's variables at the end of model_fn, and
        # object-based checkpoints would lack them.
        is_of_this_call(self.optimizer)
        if global_step is not None:
            self.optimizer.iterations = global_step
        return self.optimizer.apply_gradients(pairs)


@dataclasses.dataclass(frozen=True)
class GraphOptimizers(GraphOptimizer):
    """Several optimizers, each for a part of the variables."""

    # The optimizers; `optimizer` is the first, which counts the steps.
    parts: Sequence[GraphOptimizer]
    belongs: Sequence[int]  # Index of the optimizer of each variable, in the model's order.

    def apply_part(
        self, pairs: Sequence[tuple[Any, tf.Variable]], global_step: tf.Variable | None
    ) -> tf.Operation:
        """Returns the op that applies gradients, in this name scope."""
        return tf.group(
            *(
                part.apply_part(
                    [pair for pair, place in zip(pairs, self.belongs) if place == number],
                    None if number else global_step,
                )
                for number, part in enumerate(self.parts)
            )
        )


class _PartWise(tf.Module):
    """Several optimizers of today's Keras as one; each applies the gradients of its part."""

    def __init__(self, optimizers: Sequence[Any], belongs: Sequence[int]) -> None:
        super().__init__(name="part_wise")
        self.optimizers = list(optimizers)
        self._belongs = belongs

    def apply_gradients(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        for number, optimizer in enumerate(self.optimizers):
            optimizer.apply_gradients(
                [pair for pair, place in zip(pairs, self._belongs) if place == number]
            )


def make_optimizer(model: KerasModel) -> TracedOptimizer | GraphOptimizer:
    """Returns an optimizer for one graph with the settings of the model's own, which stays unchanged."""
    parts = model.parts_to_optimize()
    made = [_made(model, optimizer, variables) for optimizer, variables in parts]
    if len(made) == 1:
        return made[0]
    places = {
        id(variable): number
        for number, (_, variables) in enumerate(parts)
        for variable in variables
    }
    belongs = [places[id(variable)] for variable in model.trainable_variables]
    in_graphs = [each for each in made if isinstance(each, GraphOptimizer)]
    traced = [each for each in made if isinstance(each, TracedOptimizer)]
    if in_graphs and traced:
        raise ValueError(
            f"The optimizers {model.optimizer!r} of the Keras model are of different kinds: those "
            "of tf.compat.v1.train and tf.keras.optimizers.legacy work in graphs, the others do "
            "not. Compile the model with optimizers of one kind."
        )
    if in_graphs:
        return GraphOptimizers(in_graphs[0].optimizer, in_graphs, belongs)
    # The global step replaces the first optimizer's count of steps. The other counts are saved
    # variables, or Adam's bias correction would start again after a restart.
    counters = [
        Named(f"training/{number}/iteration", each.iterations, False)
        for number, each in enumerate(traced)
        if number
    ]
    return TracedOptimizer(
        _PartWise([each.optimizer for each in traced], belongs),
        [*(named for each in traced for named in each.variables), *counters],
        traced[0].iterations,
    )


def _made(
    model: KerasModel, optimizer: Any, variables: Sequence[Any]
) -> TracedOptimizer | GraphOptimizer:
    inner = getattr(optimizer, "optimizer", None)
    if isinstance(inner, v1.train.Optimizer):
        return GraphOptimizer(_unwrapped(inner))
    if _is_legacy(optimizer):
        if hasattr(optimizer, "get_scaled_loss"):
            raise ValueError(
                f"{type(optimizer).__name__} around a legacy optimizer scales the loss outside of "
                "its graph. Wrap a tf_keras.optimizers.Optimizer instead of a legacy one."
            )
        return GraphOptimizer(eagerly(model.fresh_optimizer, optimizer))
    return eagerly(_built, model, optimizer, variables)


def _built(model: KerasModel, given: Any, trained: Sequence[Any]) -> TracedOptimizer:
    optimizer = model.fresh_optimizer(given)
    optimizer.build(trained)
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
    """Rejects a CrossShardOptimizer, since the cores' gradients are combined before it."""
    if isinstance(optimizer, v1.tpu.CrossShardOptimizer):
        raise ValueError(
            "The Keras model is compiled with a CrossShardOptimizer. Compile it with the "
            "optimizer inside: keras_to_estimator combines the gradients of cores itself."
        )
    return optimizer
