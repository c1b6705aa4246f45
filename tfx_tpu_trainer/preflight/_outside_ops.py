"""Removes what `outside_compilation` keeps on the host from a step: the rest is the TPU's program.

On a TPU the program sends the host what these ops read, and waits for what they give. The compiler is
given the same demands on memory and order: the values that are sent pass a barrier together with room
for those that come back. What stands on the other side may not be known before.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

from tfx_tpu_trainer.estimator.extending import (
    OUTSIDE_MARK,
    all_nodes,
    functions_of,
    is_outside,
    ops_on_tpu,
)
from tfx_tpu_trainer.preflight._results import Finding
from tfx_tpu_trainer.preflight._step_graph import dtype_of, op_of, static_shape, tensor_offsets

v1 = tf.compat.v1

_BARRIER = "XlaOptimizationBarrier"
_OF_HOSTS = (tf.resource, tf.string, tf.variant)


@dataclasses.dataclass(frozen=True)
class OnTpu:
    """The part of a graph that a TPU runs."""

    graph_def: v1.GraphDef  # the graph without what stays on the host
    replaced: Mapping[str, str]  # name of a tensor that the host gives -> of the one in its place
    # Name of an op that stays on the host -> of what is waited for in its place.
    stand_ins: Mapping[str, str]
    finding: Finding | None  # what stays on the host; `None` where nothing does


def without_outside_ops(graph: tf.Graph, results: Iterable[str]) -> OnTpu:
    """Removes what `outside_compilation` keeps on the host from a graph and its functions."""
    graph_def = graph.as_graph_def()
    finding = _finding(graph_def)
    if finding is None:
        return OnTpu(graph_def, {}, {}, None)
    # What comes back from the host needs room, and nodes do not tell shapes by themselves.
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
    for name, tensor in function.ret.items():
        function.ret[name] = body.replaced.get(tensor, tensor)
    for name, op in function.control_ret.items():
        function.control_ret[name] = body.stand_ins.get(op, op)


class _Body:
    """The nodes of a graph or a function, and what stands for those that are outside.

    Attributes:
        replaced: See `OnTpu`.
        stand_ins: See `OnTpu`.
    """

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
        """Returns the nodes that are left, with what stands for the others."""
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
        """Replaces the members of a cluster with a barrier."""
        # Example: a = x @ k; y = outside(a); b = y + 1 becomes barrier = XlaOptimizationBarrier(room, a) and
        # b = barrier:0 + 1, where `room` is a constant of y's shape. So the program keeps a until it is sent, has room
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
        """Replaces what no TPU can be given with a placeholder: the step is refused if it is read."""
        node = v1.NodeDef(name=name, op="Placeholder")
        node.attr["dtype"].type = self._dtype(tensor).as_datatype_enum
        self._made.append(node)
        self.replaced[tensor] = self._output(name, 0)

    def _room(self, name: str, tensor: str) -> v1.NodeDef:
        """Returns a constant of the shape of a tensor that the host gives."""
        node = self._by_name[op_of(tensor)]
        shape = static_shape(node, self._index(tensor, node))
        if not shape.is_fully_defined():
            raise ValueError(
                f"outside_compilation gives the TPU {node.name!r} ({node.op}) of the shape {shape}: "
                "a TPU needs a static one. Set it inside of the function, by tf.ensure_shape."
            )
        room = v1.NodeDef(name=name, op="Const")
        room.attr["dtype"].type = self._dtype(tensor).as_datatype_enum
        # One value stands for all of them.
        value = room.attr["value"].tensor
        value.CopyFrom(tf.make_tensor_proto(0, self._dtype(tensor)))
        value.tensor_shape.CopyFrom(shape.as_proto())
        return room

    # A tensor of a graph is `op:1`, or `op` if it is the first; one of a function is `argument`, or `op:output:0` with
    # the name that the op's definition gives the output. Barriers and constants call theirs "output".
    def _output(self, op: str, index: int) -> str:
        return f"{op}:output:{index}" if self._in_function else f"{op}:{index}"

    def _index(self, tensor: str, node: v1.NodeDef) -> int:
        """Returns which of its node's outputs a tensor is."""
        if not self._in_function:
            return int(tensor.partition(":")[2] or 0)
        if ":" not in tensor:
            return 0
        _, output, index = tensor.split(":")
        return dict(tensor_offsets(node))[output] + int(index)

    def _dtype(self, tensor: str) -> tf.DType:
        node = self._by_name[op_of(tensor)]
        return dtype_of(node, self._index(tensor, node))
