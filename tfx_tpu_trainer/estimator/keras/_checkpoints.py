"""Object-based checkpoints that a Keras model can read, and a model's first checkpoint."""

import os
from collections.abc import Collection, Mapping
from typing import Any, Final

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.checkpointing.savers import saver_of_objects
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator._run_config import RunConfig
from tfx_tpu_trainer.estimator.keras._keras_model import KerasModel, is_variable
from tfx_tpu_trainer.estimator.keras._optimizers import (
    GraphOptimizer,
    GraphOptimizers,
    TracedOptimizer,
)
from tfx_tpu_trainer.estimator.keras._tf_private import eagerly
from tfx_tpu_trainer.estimator.keras._trace import GraphModel, StandIns

v1 = tf.compat.v1

_FOLDER: Final = "keras"
_NAME: Final = "keras_model.ckpt"
_STEP: Final = "estimator_global_step"
_OTHERS: Final = "estimator_variables"


def checkpoint_of(
    model: KerasModel,
    stand_ins: StandIns,
    optimizer: TracedOptimizer | GraphOptimizer | None = None,
) -> tf.train.Checkpoint:
    """Returns the objects of a Keras model with graph variables in place of Keras's.

    `tf.train.Checkpoint(model)` and `model.load_weights` read the estimator's checkpoints, and vice versa. The global
    step is saved as `estimator_global_step`, and variables that Keras does not save, such as the state of Keras 3's
    seed generators, below `estimator_variables`.
    """
    mirror = _Mirror(model, stand_ins)
    children = dict(eagerly(mirror.children_of, model.model))
    if isinstance(optimizer, TracedOptimizer):
        # A variable is saved under the shortest path to it, which must not lead through the optimizer,
        # since evaluation has none.
        own = _Mirror(model, stand_ins, left_out=mirror.reached)
        # As in Keras, several optimizers are below `optimizer` by their indices.
        trained_by = getattr(optimizer.optimizer, "optimizers", optimizer.optimizer)
        of_optimizer = eagerly(own.children_of, trained_by)
        children["optimizer"] = _with_children(tf.train.Checkpoint(), of_optimizer)
        mirror.reached |= own.reached
    elif isinstance(optimizer, GraphOptimizers):
        places = {str(place): _saved(part) for place, part in enumerate(optimizer.parts)}
        children["optimizer"] = _with_children(tf.train.Checkpoint(), places)
    elif optimizer is not None:
        children["optimizer"] = _saved(optimizer)
    children[_STEP] = v1.train.get_or_create_global_step()
    others = {v.op.name: v for v in stand_ins.all() if id(v) not in mirror.reached}
    others.pop(children[_STEP].op.name, None)
    if others:
        children[_OTHERS] = _with_children(tf.train.Checkpoint(), others)
    return _with_children(tf.train.Checkpoint(), children)


def _saved(optimizer: GraphOptimizer) -> Any:
    inner = optimizer.optimizer
    is_v1 = isinstance(inner, v1.train.Optimizer)
    return tf.train.Checkpoint(optimizer=inner) if is_v1 else inner


def write_first_checkpoint(model: KerasModel, config: RunConfig, *, of_objects: bool) -> str:
    """Saves the current values of a Keras model, unless they were saved before."""
    folder = os.path.join(str(config.model_dir), _FOLDER)
    written = tf.train.latest_checkpoint(folder)
    if written:
        return written
    tf.io.gfile.makedirs(folder)
    with fresh_graph(config.tf_random_seed) as graph:
        graph_model = GraphModel(model)
        values = eagerly(lambda: [each.variable.numpy() for each in graph_model.eager])
        saver = (
            saver_of_objects(checkpoint_of(model, graph_model.stand_ins))
            if of_objects
            else v1.train.Saver()
        )
        with v1.Session(graph=graph, config=config.session_config) as session:
            variables = graph_model.variables
            session.run(
                [v1.train.get_global_step().initializer, *(v.initializer for v in variables)],
                {v.initializer.inputs[1]: value for v, value in zip(variables, values)},
            )
            return saver.save(session, os.path.join(folder, _NAME), write_meta_graph=False)


def remove_first_values(model_dir: str) -> None:
    """Removes the checkpoint of a Keras model's own values, which a finished training no longer needs."""
    folder = os.path.join(model_dir, _FOLDER)
    if tf.io.gfile.isdir(folder):
        tf.io.gfile.rmtree(folder)


class _Mirror:
    """Mirrors the object graph of a Keras model with graph variables."""

    # An object-based checkpoint names a value by the path of attributes to it, such as
    # layer_with_weights-0/kernel. `model.load_weights` finds the values under Keras's paths,
    # with any objects. So each object with a path to a variable becomes an empty
    # tf.train.Checkpoint with the same attributes, and each variable its graph variable.
    # Example: model -> dense -> kernel (eager) becomes Checkpoint -> Checkpoint -> kernel (graph).
    # Objects may form cycles (a layer and its model), so passes over sets replace a recursion.
    # Objects without a path to a variable, such as functions, are left out.

    def __init__(
        self, model: KerasModel, stand_ins: StandIns, left_out: Collection[int] = ()
    ) -> None:
        self._model = model
        self._stand_ins = stand_ins
        self._left_out = frozenset(left_out)
        self.reached: set[int] = set()

    def children_of(self, root: Any) -> dict[str, Any]:
        """Returns an object's children by name, as nodes or graph variables."""
        children = self._children_from(root)
        made: dict[int, Any] = {key: tf.train.Checkpoint() for key in self._leading(children)}

        def made_of(trackable: Any) -> Any:
            return (
                self._variable_of(trackable) if is_variable(trackable) else made.get(id(trackable))
            )

        def named(trackable: Any) -> dict[str, Any]:
            found = {name: made_of(child) for name, child in children[id(trackable)].items()}
            return {name: child for name, child in found.items() if child is not None}

        pending, done = [root], {id(root)}
        while pending:
            for child in children[id(pending.pop())].values():
                if id(child) in made and id(child) not in done:
                    done.add(id(child))
                    pending.append(child)
                    _with_children(made[id(child)], named(child))
        return named(root)

    def _children_from(self, root: Any) -> dict[int, dict[str, Any]]:
        """Returns the children, by `id`, of an object and of all its descendants."""
        children: dict[int, dict[str, Any]] = {}
        pending = [root]
        while pending:
            trackable = pending.pop()
            if id(trackable) not in children and not is_variable(trackable):
                tracked = tf.train.TrackableView.children(trackable)
                children[id(trackable)] = {
                    name: child
                    for name, child in tracked.items()
                    if child is not self._model.optimizer
                }
                pending += children[id(trackable)].values()
        return children

    def _leading(self, children: Mapping[int, Mapping[str, Any]]) -> set[int]:
        """Returns the objects with a path to a variable that has a stand-in."""
        leading: set[int] = set()
        before = -1
        while before != len(leading):
            before = len(leading)
            leading |= {
                key
                for key, named in children.items()
                if any(
                    self._variable_of(each) is not None or id(each) in leading
                    for each in named.values()
                )
            }
        return leading

    def _variable_of(self, trackable: Any) -> tf.Variable | None:
        if not is_variable(trackable):
            return None
        variable = self._stand_ins.of(self._model.raw(trackable))
        if variable is None or id(variable) in self._left_out:
            return None
        self.reached.add(id(variable))
        return variable


def _with_children(node: Any, children: Mapping[str, Any]) -> Any:
    for name, child in children.items():
        setattr(node, name, child)
    return node
