"""A function of Keras code traced once, and its nodes copied into the default graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.graph_nodes import upstream
from tfx_tpu_trainer.estimator.keras._eagerly import eagerly
from tfx_tpu_trainer.estimator.keras._tf_private import updates_of, variables_of

v1 = tf.compat.v1

_READ: Final = "ReadVariableOp"
_HANDLES: Final = (tf.resource, tf.variant)


@dataclasses.dataclass(frozen=True)
class Trace:
    """Keras code as a graph, and what it read.

    Attributes:
        graph: The graph of the traced function.
        results: What the function returned, tensors of this graph.
        inputs: Placeholder of the graph -> the tensor that the caller gave.
        captured: Placeholder of the graph -> the eager tensor that it is of: a variable's handle, a
            table's, or a constant.
        updates: Ops whose effects the function has, in any order.
        variables: The eager variables that it touched.
    """

    graph: tf.Graph
    results: Any
    inputs: Mapping[str, tf.Tensor]
    captured: Mapping[str, Any]
    updates: Sequence[tf.Operation]
    variables: Sequence[tf.Variable]

    def handles_of(self, op: tf.Operation) -> list[Any]:
        """Returns the eager handles that an op is given."""
        return [
            self.captured[tensor.name]
            for tensor in op.inputs
            if tensor.name in self.captured and tensor.dtype in _HANDLES
        ]

    def copy(
        self,
        fetches: Sequence[tf.Tensor | tf.Operation],
        *,
        stand_in: Callable[[Any], tf.Tensor],
        name: str,
        after: tf.Tensor | None = None,
    ) -> list[Any]:
        """Copies the nodes that some results need into the default graph."""
        needed = set(upstream(fetches, given={*self.inputs, *self.captured}))
        # In the order of their making, which the engine's copies keep as well.
        nodes = [op for op in self.graph.get_operations() if op in needed]
        destination = v1.get_default_graph()
        known: dict[str, tf.Tensor] = {}

        def replaced(tensor: tf.Tensor) -> tf.Tensor | None:
            key = tensor.name
            if key not in known and key in self.inputs:
                known[key] = tf_private.capture(destination, self.inputs[key])
            elif key not in known and key in self.captured:
                known[key] = tf_private.capture(destination, stand_in(self.captured[key]))
            return known.get(key)

        input_map: dict[str, tf.Tensor] = {}
        definition = self.graph.as_graph_def()
        copied = v1.GraphDef(library=definition.library, versions=definition.versions)
        for op in nodes:
            node = copied.node.add()
            node.CopyFrom(op.node_def)
            node.device = ""
            node.attr.pop("_class", None)
            controls = [f"^{control.name}" for control in op.control_inputs if control in needed]
            del node.input[:]
            for tensor in op.inputs:
                given = replaced(tensor)
                key = f"given/{tensor.op.name}/{tensor.value_index}"
                if given is None:
                    node.input.append(tensor.name.removesuffix(":0"))
                else:
                    node.input.append(key)
                    input_map[f"{key}:0"] = given
            node.input.extend(controls)
            if after is not None and self.handles_of(op):
                node.input.append("^after")
                input_map["^after"] = after
        made = [fetch for fetch in fetches if _replacement(fetch, replaced) is None]
        copies = iter(
            tf.graph_util.import_graph_def(
                copied,
                input_map=input_map,
                return_elements=[fetch.name for fetch in made],
                name=name,
            )
            if made
            else ()
        )
        results = []
        for fetch in fetches:
            given = _replacement(fetch, replaced)
            result = next(copies) if given is None else tf.identity(given)
            if isinstance(result, tf.Tensor):
                result.set_shape(fetch.shape)
            results.append(result)
        return results


def trace(function: Callable[..., Any], *arguments: Any) -> Trace:
    """Traces a function as Keras's own training would, in a `tf.function`."""
    flat = tf.nest.flatten(arguments, expand_composites=True)
    given = [tensor for tensor in flat if tensor is not None]
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in given]
    seed = v1.get_default_graph().seed
    results: list[Any] = []

    def traced(*symbols: tf.Tensor) -> None:
        if seed is not None:
            tf.random.set_seed(seed)
        rest = iter(symbols)
        filled = [None if tensor is None else next(rest) for tensor in flat]
        packed = tf.nest.pack_sequence_as(arguments, filled, expand_composites=True)
        # Kept as they are: what a tf.function returns waits for all of its effects.
        results[:] = [function(*packed)]

    function_of_graph = tf.function(traced, autograph=False)
    concrete = eagerly(lambda: function_of_graph.get_concrete_function(*specs))
    keep_alive(v1.get_default_graph(), concrete)
    graph, placeholders = concrete.graph, concrete.inputs
    captured = concrete.captured_inputs
    return Trace(
        graph=graph,
        results=results[0],
        inputs={p.name: tensor for p, tensor in zip(placeholders, given)},
        captured={p.name: each for p, each in zip(placeholders[len(given) :], captured)},
        updates=[op for op in updates_of(graph) if op.type != _READ],
        variables=variables_of(graph),
    )


def fill(structure: Any, tensors: Iterable[tf.Tensor]) -> Any:
    """Returns a structure of a trace with the tensors that were copied of it."""
    return tf.nest.pack_sequence_as(structure, list(tensors), expand_composites=True)


def _replacement(
    fetch: tf.Tensor | tf.Operation, replaced: Callable[[tf.Tensor], tf.Tensor | None]
) -> tf.Tensor | None:
    return None if isinstance(fetch, tf.Operation) else replaced(fetch)


def keep_alive(graph: tf.Graph, traced: Any) -> None:
    """Binds what a Python op of a traced function looks up to the graph that has its copy."""
    graph.kept_keras_traces = [*getattr(graph, "kept_keras_traces", []), traced]
