"""A function's body as nodes of a graph."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf

from tfx_tpu_trainer.engine import tf_private_tpu

v1 = tf.compat.v1

_SHAPES = "_output_shapes"


def nodes_of_function(function: v1.FunctionDef) -> list[v1.NodeDef]:
    """Returns the body as nodes, the arguments as placeholders.

    Tensors are named in another way in functions: `MatMul:product:0`, by the argument of the op's
    definition, where a graph says `MatMul`.

    Args:
        function: Its definition.

    Returns:
        The nodes, those of the arguments first.
    """
    offsets = {node.name: dict(_offsets(node)) for node in function.node_def}
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
    offsets = {node.name: dict(_offsets(node)) for node in function.node_def}
    return [_graph_name(function.ret[arg.name], offsets) for arg in function.signature.output_arg]


def static_shape(node: v1.NodeDef, output: int) -> tf.TensorShape:
    """Returns the shape that is noted of an output of a node, unknown where none is."""
    shapes = node.attr[_SHAPES].list.shape if _SHAPES in node.attr else ()
    return tf.TensorShape(shapes[output]) if output < len(shapes) else tf.TensorShape(None)


def dtype_of(node: v1.NodeDef, output: int) -> tf.DType:
    """Returns the dtype of an output of a node.

    Raises:
        ValueError: If this TensorFlow does not know the op.
    """
    if node.op == "Placeholder":
        return tf.as_dtype(node.attr["dtype"].type)
    types = [dtype for _, dtypes in _output_arguments(node) for dtype in dtypes]
    return tf.as_dtype(types[output])


def _graph_name(name: str, offsets: dict[str, dict[str, int]]) -> str:
    node, _, rest = name.partition(":")
    if not rest:
        return name
    argument, _, index = rest.partition(":")
    place = offsets[node][argument] + int(index or 0)
    return f"{node}:{place}" if place else node


def _offsets(node: v1.NodeDef) -> Iterator[tuple[str, int]]:
    """Yields, for each output argument of an op, the place of its first tensor."""
    place = 0
    for name, dtypes in _output_arguments(node):
        yield name, place
        place += len(dtypes)


def _output_arguments(node: v1.NodeDef) -> Iterator[tuple[str, list[int]]]:
    """Yields the output arguments of a node: names, and the types of their tensors."""
    definition = tf_private_tpu.op_definition(node.op)
    if definition is None:
        raise ValueError(f"This TensorFlow knows no op {node.op!r}, the type of {node.name!r}.")
    for argument in definition.output_arg:
        if argument.type_list_attr:
            yield argument.name, list(node.attr[argument.type_list_attr].list.type)
            continue
        dtype = argument.type or node.attr[argument.type_attr].type
        count = node.attr[argument.number_attr].i if argument.number_attr else 1
        yield argument.name, [dtype] * count
