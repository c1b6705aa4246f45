"""A step of one core, cut out of its graph: what lowering starts from. Nodes and functions of a graph, read."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import tensorflow as tf

from tfx_tpu_trainer.estimator.extending import functions_of, tf_private
from tfx_tpu_trainer.preflight._results import Finding

v1 = tf.compat.v1

_SHAPES = "_output_shapes"
AGAIN = "Copy the model's folder again, or export the model again."


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepGraph:
    """A step and what is known of it."""

    name: str  # see `LoweredStep`
    graph_def: v1.GraphDef  # a graph that holds the step, functions included
    # Name of a tensor that the step is given -> its static shape and dtype.
    inputs: Mapping[str, tf.TensorSpec]
    outputs: Sequence[str]  # names of the tensors that the step gives
    targets: Sequence[str] = ()  # names of the ops that it runs for their effect
    num_replicas: int = 1  # copies of the step that its sums run over
    rows: int | None = None  # rows of a core's batch, or `None`
    # What each input is called in messages, in their order; its tensor's name where empty.
    input_names: Sequence[str] = ()
    # Name of an op -> the user's line that made it, as far as known.
    sources: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    # Names of the variables that are trained; `None` where that is not known.
    trained: Collection[str] | None = None
    findings: tuple[Finding, ...] = ()  # what to warn of already
    num_partitions: int = 1  # TPU devices that each copy is spread over
    # Name of an input that is cut for them -> its parts along each dimension.
    input_partitions: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)

    def needed_nodes(self) -> list[v1.NodeDef]:
        """Returns the nodes that the step runs, in the graph's order; its inputs are not among them."""
        by_name = {node.name: node for node in self.graph_def.node}
        given = {op_of(tensor) for tensor in self.inputs}
        pending = [*map(op_of, self.outputs), *self.targets]
        needed: set[str] = set()
        while pending:
            name = pending.pop()
            if name not in needed and name not in given:
                needed.add(name)
                pending += [op_of(source) for source in by_name[name].input]
        return [node for node in self.graph_def.node if node.name in needed]

    def without_unused_inputs(self) -> StepGraph:
        """Returns the same step without the inputs that it does not read."""
        read = {_tensor(source) for node in self.needed_nodes() for source in node.input}
        read |= {*self.outputs}
        kept = [name in read for name in self.inputs]
        return dataclasses.replace(
            self,
            inputs={name: spec for (name, spec), keep in zip(self.inputs.items(), kept) if keep},
            input_names=[name for name, keep in zip(self.input_names, kept) if keep],
        )

    def functions(self) -> dict[str, v1.FunctionDef]:
        """Returns the functions of the graph by name."""
        return functions_of(self.graph_def.library)

    def look_up(self, op_name: str) -> tuple[str | None, str | None]:
        """Returns type and source line of an op; of one in a function, no type and its caller's line."""
        node = next((node for node in self.graph_def.node if node.name == op_name), None)
        return (node.op if node else None), self.source_of(op_name)

    def source_of(self, op_name: str) -> str | None:
        """Finds the user's line that made an op; of an op in a function, of what calls it."""
        while op_name:
            if self.sources.get(op_name):
                return self.sources[op_name]
            op_name = op_name.rpartition("/")[0]
        return None


def _tensor(source: str) -> str:
    return source if ":" in source else f"{source}:0"


def op_of(tensor: str) -> str:
    """Returns the op in a tensor's name, an input of a node or a control edge."""
    return tensor.removeprefix("^").split(":")[0]


class ByName(dict[str, Any]):
    """Nodes or functions of a file, which may name others that it does not have."""

    def __missing__(self, name: str) -> NoReturn:
        raise ValueError(f"The graph is damaged: it has no {name!r}. {AGAIN}")


def nodes_of_function(function: v1.FunctionDef) -> list[v1.NodeDef]:
    """Returns the body as nodes, the arguments as placeholders.

    Tensors are named in another way in functions: `MatMul:product:0`, by the argument of the op's
    definition, where a graph says `MatMul`.
    """
    offsets = _offsets(function)
    nodes = []
    for index, argument in enumerate(function.signature.input_arg):
        node = v1.NodeDef(name=argument.name, op="Placeholder")
        node.attr["dtype"].type = argument.type
        attributes = function.arg_attr[index].attr if index in function.arg_attr else {}
        if _SHAPES in attributes:
            node.attr[_SHAPES].CopyFrom(attributes[_SHAPES])
        nodes.append(node)
    for each in function.node_def:
        node = v1.NodeDef()
        node.CopyFrom(each)
        del node.input[:]
        node.input.extend(_graph_name(name, offsets) for name in each.input)
        nodes.append(node)
    return nodes


def results_of_function(function: v1.FunctionDef) -> list[str]:
    """Returns the names of the tensors that a function returns, as a graph has them."""
    offsets = _offsets(function)
    return [_graph_name(function.ret[arg.name], offsets) for arg in function.signature.output_arg]


def static_shape(node: v1.NodeDef, output: int) -> tf.TensorShape:
    """Returns the shape that is noted of an output of a node, unknown where none is."""
    shapes = node.attr[_SHAPES].list.shape if _SHAPES in node.attr else ()
    return tf.TensorShape(shapes[output]) if output < len(shapes) else tf.TensorShape(None)


def dtype_of(node: v1.NodeDef, output: int) -> tf.DType:
    """Returns the dtype of an output of a node."""
    if node.op == "Placeholder":
        return tf.as_dtype(node.attr["dtype"].type)
    types = [dtype for _, dtypes in _output_arguments(node) for dtype in dtypes]
    return tf.as_dtype(types[output])


def _offsets(function: v1.FunctionDef) -> Mapping[str, Mapping[str, int]]:
    return ByName((node.name, ByName(tensor_offsets(node))) for node in function.node_def)


def _graph_name(name: str, offsets: Mapping[str, Mapping[str, int]]) -> str:
    node, _, rest = name.partition(":")
    if not rest:
        return name
    argument, _, index = rest.partition(":")
    place = offsets[node][argument] + int(index or 0)
    return f"{node}:{place}" if place else node


def tensor_offsets(node: v1.NodeDef) -> Iterator[tuple[str, int]]:
    """Yields, for each output argument of a node, the place of its first tensor."""
    place = 0
    for name, dtypes in _output_arguments(node):
        yield name, place
        place += len(dtypes)


def _output_arguments(node: v1.NodeDef) -> Iterator[tuple[str, list[int]]]:
    """Yields the output arguments of a node: names, and the types of their tensors."""
    definition = tf_private.op_definition(node.op)
    if definition is None:
        raise ValueError(f"This TensorFlow has no op {node.op!r}, the type of {node.name!r}.")
    for argument in definition.output_arg:
        if argument.type_list_attr:
            yield argument.name, list(node.attr[argument.type_list_attr].list.type)
            continue
        dtype = argument.type or node.attr[argument.type_attr].type
        count = node.attr[argument.number_attr].i if argument.number_attr else 1
        yield argument.name, [dtype] * count
