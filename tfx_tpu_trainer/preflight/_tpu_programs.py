"""The TPU programs in an exported metagraph: found, and cut out of what the host does around them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import tensorflow as tf

from tfx_tpu_trainer.estimator.extending import functions_of, is_outside, ops_on_tpu, tf_private

v1 = tf.compat.v1

_TPU_CALL = "TPUPartitionedCall"
_CALLS = ("BatchFunction", "PartitionedCall", "StatefulPartitionedCall")
_VARIABLE = "VarHandleOp"
_OUTPUT_MARK = "_tpu_output_identity"
_AGAIN = "Copy the model's folder again, or export the model again."


@dataclasses.dataclass(frozen=True)
class TpuProgram:
    """A program that the host asks a TPU to run.

    Attributes:
        function: Name of its function.
        nodes: What runs on the TPU, and the variables that it reads; no string is among it.
        inputs: Name of a tensor that comes from the host -> its shape and dtype as far as known.
        outputs: Names of the tensors that go to the host.
    """

    function: str
    nodes: tuple[v1.NodeDef, ...]
    inputs: Mapping[str, tf.TensorSpec]
    outputs: tuple[str, ...]


def find_programs(graph_def: v1.GraphDef, outputs: Sequence[str]) -> Iterator[TpuProgram]:
    """Finds the programs that some outputs of a graph are computed with."""
    functions = _ByName(functions_of(graph_def.library))
    called: set[str] = set()
    pending = [(_ByName((node.name, node) for node in graph_def.node), outputs)]
    while pending:
        nodes, wanted = pending.pop()
        for node in (nodes[name] for name in _needed(nodes, wanted)):
            name = node.attr["f"].func.name
            if (node.op != _TPU_CALL and node.op not in _CALLS) or name in called:
                continue
            called.add(name)
            function = functions[name]
            body = _ByName((each.name, each) for each in nodes_of_function(function))
            _hand_in_variables(function, node, nodes, body)
            if node.op == _TPU_CALL:
                yield _cut(function, body)
            else:
                pending.append((body, results_of_function(function)))


class _ByName(dict[str, Any]):
    """Nodes or functions of a file, which may name others that it does not have."""

    def __missing__(self, name: str) -> NoReturn:
        raise ValueError(f"The graph is damaged: it has no {name!r}. {_AGAIN}")


def _hand_in_variables(
    function: Any,
    call: v1.NodeDef,
    nodes: Mapping[str, v1.NodeDef],
    body: dict[str, v1.NodeDef],
) -> None:
    """Puts variables in the place of the arguments that a call hands them in by."""
    for argument, source in zip(function.signature.input_arg, call.input):
        given = nodes[_op_of(source)]
        if given.op == _VARIABLE:
            variable = v1.NodeDef()
            variable.CopyFrom(given)
            body[argument.name] = variable


def _cut(function: Any, body: Mapping[str, v1.NodeDef]) -> TpuProgram:
    """Takes out what runs on the TPU, and notes the tensors that cross the border."""
    kept = {name for name, node in body.items() if _runs_on_tpu(node)}
    variables = {name: node for name, node in body.items() if node.op == _VARIABLE}
    # A variable keeps its own name, which is what messages should say, unless an op has it.
    called = {
        name: node.name if node.name not in kept else name for name, node in variables.items()
    }
    nodes: dict[str, v1.NodeDef] = {}
    inputs: dict[str, tf.TensorSpec] = {}
    for name in (each for each in body if each in kept):
        node = v1.NodeDef()
        node.CopyFrom(body[name])
        del node.input[:]
        for source in body[name].input:
            origin = _op_of(source)
            if source.startswith("^"):
                if origin in kept:
                    node.input.append(source)
            elif origin in variables:
                variable = nodes.setdefault(called[origin], v1.NodeDef())
                variable.CopyFrom(variables[origin])
                variable.name = called[origin]
                node.input.append(called[origin])
            else:
                producer, tensor = _through_border(source, body)
                if producer.name in kept:
                    node.input.append(tensor)
                elif producer.op == "Const":
                    constant = nodes.setdefault(producer.name, v1.NodeDef())
                    constant.CopyFrom(producer)
                    del constant.input[:]
                    node.input.append(producer.name)
                else:
                    index = _index_of(tensor)
                    inputs[f"{producer.name}:{index}"] = tf.TensorSpec(
                        static_shape(producer, index), dtype_of(producer, index)
                    )
                    node.input.append(tensor)
        nodes[name] = node
    outputs = {
        f"{_op_of(source)}:{_index_of(source)}": None
        for name, node in body.items()
        if name not in kept
        for source in node.input
        if not source.startswith("^") and _op_of(source) in kept
    }
    return TpuProgram(function.signature.name, tuple(nodes.values()), inputs, tuple(outputs))


def _runs_on_tpu(node: v1.NodeDef) -> bool:
    marked = ops_on_tpu.ON_TPU_MARK in node.attr and node.op not in ops_on_tpu.SCAFFOLDING
    return marked and not is_outside(node) and _OUTPUT_MARK not in node.attr


def _through_border(source: str, body: Mapping[str, v1.NodeDef]) -> tuple[v1.NodeDef, str]:
    """Follows a tensor through the op that only brings it in."""
    passed: set[str] = set()
    while (node := body[_op_of(source)]).op == "TPUReplicatedInput":
        if node.name in passed:
            raise ValueError(f"The graph is damaged: {node.name!r} is its own input. {_AGAIN}")
        passed.add(node.name)
        source = node.input[0] if node.input else ""
    return node, source


def _needed(nodes: Mapping[str, v1.NodeDef], outputs: Sequence[str]) -> list[str]:
    pending = [_op_of(output) for output in outputs]
    needed: dict[str, None] = {}
    while pending:
        name = pending.pop()
        if name not in needed:
            needed[name] = None
            pending += [_op_of(source) for source in nodes[name].input]
    return list(needed)


def _op_of(tensor: str) -> str:
    return tensor.removeprefix("^").split(":")[0]


def _index_of(tensor: str) -> int:
    return int(tensor.partition(":")[2] or 0)


_SHAPES = "_output_shapes"


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
    return _ByName((node.name, _ByName(tensor_offsets(node))) for node in function.node_def)


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
