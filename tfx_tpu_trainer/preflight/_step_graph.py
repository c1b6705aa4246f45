"""Cuts one core's step out of its graph for lowering, without the ops that `outside_compilation` keeps on the host.

On a TPU the program sends the host the inputs of these ops, and waits for their results. The lowered step has the same
demands on memory and order: the sent values pass a barrier together with room for the results, which the compiler can't
know before.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import tensorflow as tf

from tfx_tpu_trainer.estimator.extending import (
    OUTSIDE_MARK,
    all_nodes,
    functions_of,
    is_outside,
    ops_on_tpu,
    tf_private,
)
from tfx_tpu_trainer.preflight._results import Finding

v1 = tf.compat.v1


_SHAPES = "_output_shapes"
AGAIN = "Copy the model's folder again, or export the model again."


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepGraph:
    """A step and the facts known about it."""

    name: str  # see `LoweredStep`
    graph_def: v1.GraphDef  # a graph that holds the step, functions included
    # Name of an input tensor -> its static shape and dtype.
    inputs: Mapping[str, tf.TensorSpec]
    outputs: Sequence[str]  # names of the output tensors
    targets: Sequence[str] = ()  # names of ops with side effects
    num_replicas: int = 1  # copies of the step in its sums
    rows: int | None = None  # rows of a core's batch; `None` if unknown
    # Names of the inputs in messages; if empty, their tensors' names.
    input_names: Sequence[str] = ()
    # Op -> the user's line that made it, as far as known.
    sources: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    # Names of the trained variables; `None` if unknown.
    trained: Collection[str] | None = None
    findings: tuple[Finding, ...] = ()  # warnings found so far
    num_partitions: int = 1  # TPU devices of each copy
    # Name of a partitioned input -> its parts along each dimension.
    input_partitions: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)

    def needed_nodes(self) -> list[v1.NodeDef]:
        """Returns the nodes that the step runs, in the graph's order, without its inputs."""
        by_name = {node.name: node for node in self.graph_def.node}
        given = {op_of(tensor) for tensor in self.inputs}
        needed = upstream(by_name, [*self.outputs, *self.targets], without=given)
        return [node for node in self.graph_def.node if node.name in needed]

    def without_unused_inputs(self) -> StepGraph:
        """Returns the step without inputs that it does not read."""
        read = {_tensor(source) for node in self.needed_nodes() for source in node.input}
        read |= {*self.outputs}
        kept = [name in read for name in self.inputs]
        return dataclasses.replace(
            self,
            inputs={name: spec for (name, spec), keep in zip(self.inputs.items(), kept) if keep},
            input_names=[name for name, keep in zip(self.input_names, kept) if keep],
        )

    def functions(self) -> dict[str, v1.FunctionDef]:
        """Returns the graph's functions by name."""
        return functions_of(self.graph_def.library)

    def look_up(self, op_name: str) -> tuple[str | None, str | None]:
        """Returns an op's type and source line; for an op in a function, no type and its caller's line."""
        node = next((node for node in self.graph_def.node if node.name == op_name), None)
        return (node.op if node else None), self.source_of(op_name)

    def source_of(self, op_name: str) -> str | None:
        """Finds the user's line that made an op; for an op in a function, that of its caller."""
        # Op names are paths of scopes. An op inside a loop, such as `dense/while/body/MatMul`, has no separate line,
        # but `dense/while`, which calls the body, has one.
        while op_name:
            if self.sources.get(op_name):
                return self.sources[op_name]
            op_name = op_name.rpartition("/")[0]
        return None


def _tensor(source: str) -> str:
    return source if ":" in source else f"{source}:0"


def op_of(tensor: str) -> str:
    """Returns the op of a tensor's name, a node's input or a control edge."""
    return tensor.removeprefix("^").split(":")[0]


def upstream(
    nodes: Mapping[str, v1.NodeDef], wanted: Iterable[str], *, without: Collection[str] = ()
) -> dict[str, None]:
    """Returns the names of the nodes upstream of tensors or ops, these included."""
    pending = [op_of(each) for each in wanted]
    found: dict[str, None] = {}
    while pending:
        name = pending.pop()
        if name not in found and name not in without:
            found[name] = None
            pending += [op_of(source) for source in nodes[name].input]
    return found


class ByName(dict[str, Any]):
    """Nodes or functions of a file, which may name missing ones."""

    def __missing__(self, name: str) -> NoReturn:
        raise ValueError(f"The graph is damaged: it has no {name!r}. {AGAIN}")


def nodes_of_function(function: v1.FunctionDef) -> list[v1.NodeDef]:
    """Returns a function's body as nodes, with placeholders for its arguments.

    Tensors are named in another way in functions: `MatMul:product:0`, by the argument of the op's
    definition, while a graph has `MatMul`.
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
    """Returns the names of a function's result tensors in graph form."""
    offsets = _offsets(function)
    return [_graph_name(function.ret[arg.name], offsets) for arg in function.signature.output_arg]


def static_shape(node: v1.NodeDef, output: int) -> tf.TensorShape:
    """Returns the recorded shape of a node's output; unknown if there is none."""
    shapes = node.attr[_SHAPES].list.shape if _SHAPES in node.attr else ()
    return tf.TensorShape(shapes[output]) if output < len(shapes) else tf.TensorShape(None)


def dtype_of(node: v1.NodeDef, output: int) -> tf.DType:
    """Returns the dtype of a node's output."""
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
    # Example: a function's `Split:output:1` is `Split:1` in a graph, and `MatMul:product:0` is `MatMul`.
    place = offsets[node][argument] + int(index or 0)
    return f"{node}:{place}" if place else node


def tensor_offsets(node: v1.NodeDef) -> Iterator[tuple[str, int]]:
    """Yields, for each output argument of a node, the index of its first tensor."""
    place = 0
    for name, dtypes in _output_arguments(node):
        yield name, place
        place += len(dtypes)


def _output_arguments(node: v1.NodeDef) -> Iterator[tuple[str, list[int]]]:
    """Yields a node's output arguments: names, and the types of their tensors."""
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


_BARRIER = "XlaOptimizationBarrier"
_OF_HOSTS = (tf.resource, tf.string, tf.variant)


@dataclasses.dataclass(frozen=True)
class OnTpu:
    """The part of a graph that a TPU runs."""

    graph_def: v1.GraphDef  # the graph without the host's part
    replaced: Mapping[str, str]  # name of a tensor from the host -> name of its replacement
    # Op that stays on the host -> the op to wait for instead.
    stand_ins: Mapping[str, str]
    finding: Finding | None  # describes the host's part; `None` if there is none


def without_outside_ops(graph: tf.Graph, results: Iterable[str]) -> OnTpu:
    """Removes the ops that `outside_compilation` keeps on the host from a graph and its functions."""
    graph_def = graph.as_graph_def()
    finding = _finding(graph_def)
    if finding is None:
        return OnTpu(graph_def, {}, {}, None)
    # Results from the host need memory, and nodes alone have no shapes.
    graph_def = graph.as_graph_def(add_shapes=True)
    for function in graph_def.library.function:
        if any(is_outside(node) for node in function.node_def):
            _take_out_of_function(function)
    body = _Body(graph_def.node, results)
    del graph_def.node[:]
    graph_def.node.extend(body.rest())
    return OnTpu(graph_def, body.replaced, body.stand_ins, finding)


def _finding(graph_def: v1.GraphDef) -> Finding | None:
    functions, seen = functions_of(graph_def.library), set[str]()
    kept = collections.Counter[str]()
    for node in filter(is_outside, all_nodes(graph_def)):
        kept.update(
            each.op for each in (node, *ops_on_tpu.nodes_called(node, functions, seen=seen))
        )
    if not kept:
        return None
    ops = ", ".join(f"{count} {op}" for op, count in sorted(kept.items()) if op != "Const")
    return Finding(
        kind="host_op",
        message=(
            f"outside_compilation keeps on the host: {ops or 'constants'}. In each step the TPU sends "
            "what these read and waits for what they return; the estimate does not include that."
        ),
    )


def _take_out_of_function(function: v1.FunctionDef) -> None:
    arguments = [v1.NodeDef(name=a.name, op="Placeholder") for a in function.signature.input_arg]
    for node, argument in zip(arguments, function.signature.input_arg):
        node.attr["dtype"].type = argument.type
    body = _Body(function.node_def, function.ret.values(), arguments)
    del function.node_def[:]
    function.node_def.extend(body.rest())
    # The signature stays, so callers need no change; only the sources of results change.
    for name, tensor in function.ret.items():
        function.ret[name] = body.replaced.get(tensor, tensor)
    for name, op in function.control_ret.items():
        function.control_ret[name] = body.stand_ins.get(op, op)


class _Body:
    """A graph's or function's nodes, with replacements for those outside, as in `OnTpu`."""

    def __init__(
        self,
        nodes: Iterable[v1.NodeDef],
        results: Iterable[str],
        arguments: Sequence[v1.NodeDef] | None = None,
    ) -> None:
        self._in_function = arguments is not None
        self._nodes = list(nodes)
        self._by_name = {node.name: node for node in (*(arguments or ()), *self._nodes)}
        inside = (node for node in self._nodes if not is_outside(node))
        read = [*(source for node in inside for source in node.input), *results]
        self._read = dict.fromkeys(each for each in read if not each.startswith("^"))
        self.replaced: dict[str, str] = {}
        self.stand_ins: dict[str, str] = {}
        self._made: list[v1.NodeDef] = []
        clusters: dict[str, list[v1.NodeDef]] = collections.defaultdict(list)
        for node in self._nodes:
            if is_outside(node):
                clusters[node.attr[OUTSIDE_MARK].s.decode()].append(node)
        for cluster, members in clusters.items():
            self._stand_in(f"outside_compilation/{cluster}", {node.name for node in members})

    def rest(self) -> list[v1.NodeDef]:
        """Returns the remaining nodes, with replacements for the others."""
        left = []
        for node in (*self._made, *self._nodes):
            if is_outside(node):
                continue
            copy = v1.NodeDef()
            copy.CopyFrom(node)
            del copy.input[:]
            copy.input.extend(map(self._redirected, node.input))
            left.append(copy)
        return left

    def _redirected(self, source: str) -> str:
        if source.startswith("^"):
            return f"^{self.stand_ins.get(source[1:], source[1:])}"
        return self.replaced.get(source, source)

    def _stand_in(self, name: str, members: set[str]) -> None:
        """Replaces a cluster's members by a barrier."""
        # Example: a = x @ k; y = outside(a); b = y + 1 becomes barrier = XlaOptimizationBarrier(room, a) and b =
        # barrier:0 + 1, where `room` is a constant with y's shape. So the program keeps a until it is sent, has room
        # for y, and computes b after a; and the compiler can't fold the constant into b.
        sources = dict.fromkeys(
            source for member in sorted(members) for source in self._by_name[member].input
        )
        entering = [source for source in sources if op_of(source) not in members]
        sent = [s for s in entering if not s.startswith("^") and self._dtype(s) not in _OF_HOSTS]
        waited_for = [source for source in entering if source.startswith("^")]
        read = [source for source in self._read if op_of(source) in members]
        returned = [source for source in read if self._dtype(source) not in _OF_HOSTS]
        for source in (each for each in read if each not in returned):
            self._leave(f"{name}/{source.replace(':', '_')}", source)
        barrier = v1.NodeDef(name=name, op=_BARRIER if sent or returned else "NoOp")
        for source in returned:
            room = self._room(f"{name}/room_{len(self._made)}", source)
            self.replaced[source] = self._output(name, len(barrier.input))
            barrier.input.append(self._output(room.name, 0))
            barrier.attr["T"].list.type.append(room.attr["dtype"].type)
            self._made.append(room)
        for source in sent:
            barrier.input.append(source)
            barrier.attr["T"].list.type.append(self._dtype(source).as_datatype_enum)
        barrier.input.extend(waited_for)
        self._made.append(barrier)
        self.stand_ins |= dict.fromkeys(members, name)

    def _leave(self, name: str, tensor: str) -> None:
        """Replaces a tensor that no TPU can hold by a placeholder; the step is rejected if it reads it."""
        node = v1.NodeDef(name=name, op="Placeholder")
        node.attr["dtype"].type = self._dtype(tensor).as_datatype_enum
        self._made.append(node)
        self.replaced[tensor] = self._output(name, 0)

    def _room(self, name: str, tensor: str) -> v1.NodeDef:
        """Returns a constant with the shape of a tensor from the host."""
        node = self._by_name[op_of(tensor)]
        shape = static_shape(node, self._index(tensor, node))
        if not shape.is_fully_defined():
            raise ValueError(
                f"outside_compilation gives the TPU {node.name!r} ({node.op}) of the shape {shape}: "
                "a TPU needs a static one. Set it inside of the function, with tf.ensure_shape."
            )
        room = v1.NodeDef(name=name, op="Const")
        room.attr["dtype"].type = self._dtype(tensor).as_datatype_enum
        # A single value applies to all of them.
        value = room.attr["value"].tensor
        value.CopyFrom(tf.make_tensor_proto(0, self._dtype(tensor)))
        value.tensor_shape.CopyFrom(shape.as_proto())
        return room

    # A graph's tensor is `op:1`, or `op` if it is the first; a function's is `argument`, or `op:output:0` with the
    # output's name in the op's definition. For barriers and constants that is "output".
    def _output(self, op: str, index: int) -> str:
        return f"{op}:output:{index}" if self._in_function else f"{op}:{index}"

    def _index(self, tensor: str, node: v1.NodeDef) -> int:
        """Returns a tensor's index among its node's outputs."""
        if not self._in_function:
            return int(tensor.partition(":")[2] or 0)
        if ":" not in tensor:
            return 0
        _, output, index = tensor.split(":")
        return dict(tensor_offsets(node))[output] + int(index)

    def _dtype(self, tensor: str) -> tf.DType:
        node = self._by_name[op_of(tensor)]
        return dtype_of(node, self._index(tensor, node))
