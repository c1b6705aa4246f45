"""Any function of TensorFlow as a step, with the variables that it captures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator.extending import source_line, tf_private
from tfx_tpu_trainer.preflight._lowering import lower
from tfx_tpu_trainer.preflight._results import LoweredStep
from tfx_tpu_trainer.preflight._step_graph import StepGraph

v1 = tf.compat.v1

_VARIABLE = "VarHandleOp"
_CONCRETE = tf.types.experimental.ConcreteFunction


def is_keras_model(model: Any) -> bool:
    """Tells whether something is a model of Keras 2 or Keras 3."""
    modules = (sys.modules.get(name) for name in ("tf_keras", "keras"))
    return any(module is not None and isinstance(model, module.Model) for module in modules)


def specs_of_replica(input_signature: Any, *, rows: int | None) -> Any:
    """Returns a signature with the rows of one replica, where its first axis is left open."""

    def closed(spec: Any) -> tf.TensorSpec:
        if not isinstance(spec, tf.TensorSpec):
            raise TypeError(
                f"input_signature holds {spec!r}: give a tf.TensorSpec for each tensor."
            )
        shape = spec.shape
        if shape.rank and shape[0] is None and rows is not None:
            shape = tf.TensorShape([rows, *shape[1:]])
        if not shape.is_fully_defined():
            raise ValueError(
                f"input_signature holds {spec}: a TPU program has static shapes. Leave only the "
                "first axis open, and give batch_size for it."
            )
        return tf.TensorSpec(shape, spec.dtype, name=spec.name)

    return tf.nest.map_structure(closed, input_signature)


def lower_function(
    function: Any,
    input_signature: Sequence[Any] | None = None,
    *,
    rows: int | None = None,
    num_replicas: int = 1,
    num_partitions: int = 1,
    name: str = "function",
) -> LoweredStep:
    """Lowers a function of TensorFlow."""
    if not callable(function):
        raise ValueError(f"{function!r} can't be called: give a tf.function or a function.")
    arguments, keywords = _signature_of(function, input_signature)
    if isinstance(function, _CONCRETE):
        # Its own shapes may be open.
        function = tf.function(_calling(function), autograph=False)
    else:
        # Not the function's own traces: their shapes may be open, and their sums over one replica.
        own = getattr(function, "python_function", None)
        function = tf.function(own or function, autograph=own is not None)
    arguments = specs_of_replica(arguments, rows=rows)
    keywords = specs_of_replica(keywords, rows=rows)
    # Sums over replicas ask how many there are when they are made.
    with tf_private.replicas(num_replicas):
        graph = function.get_concrete_function(*arguments, **keywords).graph
    return lower(_step_of(graph, name, rows, num_replicas, num_partitions))


def _signature_of(
    function: Any, input_signature: Sequence[Any] | None
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if input_signature is not None:
        return list(input_signature), {}
    if isinstance(function, _CONCRETE):
        return function.structured_input_signature
    own = getattr(function, "input_signature", None)
    if own is None:
        raise ValueError(
            f"input_signature=None, and {getattr(function, '__name__', function)!r} does not "
            "declare one: give a tf.TensorSpec for each argument, or declare it with "
            "tf.function(input_signature=...)."
        )
    return list(own), {}


def _calling(function: Any) -> Callable[..., Any]:
    return lambda *arguments, **keywords: function(*arguments, **keywords)


def _step_of(
    graph: Any, name: str, rows: int | None, num_replicas: int, num_partitions: int
) -> StepGraph:
    graph_def = graph.as_graph_def()
    variables = {id(variable.handle): variable for variable in graph.variables}
    names: dict[str, str] = {}
    taken = {node.name for node in graph_def.node}
    given: dict[str, tf.TensorSpec] = {}
    captured = {id(inner) for _, inner in graph.captures}
    for tensor in graph.inputs:
        if id(tensor) not in captured:
            given[tensor.name] = tf.TensorSpec(tensor.shape, tensor.dtype)
    for outer, inner in graph.captures:
        if inner.dtype == tf.resource:
            if id(outer) not in variables:
                raise ValueError(
                    f"The function uses {outer!r}, which is neither a tensor nor a variable: a TPU "
                    "holds no tables, datasets or summary writers. Use it outside the function."
                )
            names[inner.op.name] = _unused(variables[id(outer)].name.split(":")[0], taken)
        else:
            given[inner.name] = tf.TensorSpec(inner.shape, inner.dtype)
    by_placeholder = {
        inner.op.name: variables[id(outer)]
        for outer, inner in graph.captures
        if inner.op.name in names
    }
    for node in graph_def.node:
        node.input[:] = [_renamed(source, names) for source in node.input]
        if node.name in by_placeholder:
            _make_variable(node, by_placeholder[node.name], names[node.name])
    trained = {id(variable.handle) for variable in graph.trainable_variables}
    return StepGraph(
        name=name,
        graph_def=graph_def,
        inputs=given,
        outputs=[_renamed(each.name, names) for each in graph.outputs if _is_number(each)],
        targets=[each.name for each in graph.control_outputs],
        num_replicas=num_replicas,
        num_partitions=num_partitions,
        rows=rows,
        sources={op.name: source_line(op) for op in graph.get_operations()},
        trained={
            names[placeholder]
            for placeholder, variable in by_placeholder.items()
            if id(variable.handle) in trained
        },
    )


def _is_number(tensor: tf.Tensor) -> bool:
    return tensor.dtype not in (tf.resource, tf.variant)


def _make_variable(node: v1.NodeDef, variable: Any, name: str) -> None:
    node.Clear()
    node.name, node.op = name, _VARIABLE
    node.attr["dtype"].type = variable.dtype.as_datatype_enum
    node.attr["shape"].shape.CopyFrom(variable.shape.as_proto())
    node.attr["shared_name"].s = name.encode()


def _renamed(source: str, names: Mapping[str, str]) -> str:
    """Returns an input of a node, or a tensor's name, with its op's new name."""
    control = "^" if source.startswith("^") else ""
    op, colon, index = source.removeprefix("^").partition(":")
    return f"{control}{names.get(op, op)}{colon}{index}"


def _unused(name: str, taken: set[str]) -> str:
    unused = next(each for each in _candidates(name) if each not in taken)
    taken.add(unused)
    return unused


def _candidates(name: str) -> Iterator[str]:
    yield name
    number = 1
    while True:
        yield f"{name}_{number}"
        number += 1
