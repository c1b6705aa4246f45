"""Traverses the nodes of graphs, and the tensors of their signatures."""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1


def upstream(
    nodes: Iterable[tf.Tensor | tf.Operation], *, given: Collection[str] = ()
) -> Iterator[tf.Operation]:
    """Yields the operations that run when some nodes are fetched."""
    pending = list(nodes)
    seen: set[tf.Operation] = set()
    while pending:
        node = pending.pop()
        op = node if isinstance(node, tf.Operation) else node.op
        # Readers that wait for an operation wait for the tensors given in its place.
        outputs = op.outputs if op is node else [node]
        if op in seen or (outputs and all(tensor.name in given for tensor in outputs)):
            continue
        seen.add(op)
        yield op
        pending += [*op.inputs, *op.control_inputs]


def all_nodes(graph_def: v1.GraphDef) -> Iterator[v1.NodeDef]:
    """Yields the nodes of a graph, and of the functions in its library."""
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def


def functions_of(library: Any) -> dict[str, v1.FunctionDef]:
    """Returns name -> function, from the `library` of a GraphDef."""
    return {function.signature.name: function for function in library.function}


def called_functions(node: v1.NodeDef) -> Iterator[str]:
    """Yields the names of the functions in a node's attributes."""
    for attr in node.attr.values():
        if attr.HasField("func"):
            yield attr.func.name
        for function in attr.list.func:
            yield function.name


def nodes_called(
    nodes: Iterable[v1.NodeDef],
    functions: Mapping[str, v1.FunctionDef],
    *,
    seen: set[str] | None = None,
    enters: Callable[[v1.NodeDef], bool] = lambda node: True,
) -> Iterator[v1.NodeDef]:
    """Yields the nodes of the functions that some nodes call, directly or not."""
    seen = set() if seen is None else seen

    def of_calls(node: v1.NodeDef) -> list[v1.NodeDef]:
        found: list[v1.NodeDef] = []
        for name in called_functions(node):
            if name in functions and name not in seen:
                seen.add(name)
                found += functions[name].node_def
        return found

    for node in nodes:
        # Depth first, in the nodes' order: so the stack is filled backwards.
        pending = of_calls(node)[::-1]
        while pending:
            inner = pending.pop()
            yield inner
            if enters(inner):
                pending += of_calls(inner)[::-1]


def functions_with(
    functions: Mapping[str, v1.FunctionDef], wanted: Callable[[v1.NodeDef], bool]
) -> set[str]:
    """Finds the functions that have a wanted node, themselves or in a function that they call."""
    callers = collections.defaultdict[str, list[str]](list)
    pending = []
    for name, function in functions.items():
        for node in function.node_def:
            # The type of a TensorFlow 1 call is its function's name.
            for called in (node.op, *called_functions(node)):
                callers[called].append(name)
            if wanted(node):
                pending.append(name)
    found: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += callers[name]
    return found


def tensor_names(info: Any) -> Iterator[str]:
    """Yields the names of the tensors that make up an input or output of a signature.

    Args:
        info: Its TensorInfo.

    Yields:
        Names; for a sparse tensor, those of its values, indices and shape.
    """
    kind = info.WhichOneof("encoding")
    if kind == "name":
        yield info.name
    elif kind == "coo_sparse":
        yield from (name for _, name in info.coo_sparse.ListFields())
    else:
        for component in info.composite_tensor.components:
            yield from tensor_names(component)
