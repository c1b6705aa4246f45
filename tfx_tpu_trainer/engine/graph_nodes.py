"""Walks through the nodes of graphs, and through the tensors of their signatures."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1


def upstream(
    nodes: Iterable[tf.Tensor | tf.Operation], *, given: Collection[str] = ()
) -> Iterator[tf.Operation]:
    """Goes through the operations that run when some nodes are fetched.

    Args:
        nodes: Tensors and operations of a graph.
        given: Names of tensors whose values are there already: what only makes these does not
            run. Defaults to none.

    Yields:
        Each operation once, those that make the nodes first.
    """
    pending = list(nodes)
    seen: set[tf.Operation] = set()
    while pending:
        node = pending.pop()
        op = node if isinstance(node, tf.Operation) else node.op
        # What waits for an operation waits for what is given in its place.
        outputs = op.outputs if op is node else [node]
        if op in seen or (outputs and all(tensor.name in given for tensor in outputs)):
            continue
        seen.add(op)
        yield op
        pending += [*op.inputs, *op.control_inputs]


def all_nodes(graph_def: v1.GraphDef) -> Iterator[v1.NodeDef]:
    """Goes through the nodes of a graph, and of the functions in its library."""
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def


def tensor_names(info: Any) -> Iterator[str]:
    """Goes through the tensors that an input or output of a signature is made of.

    Args:
        info: Its TensorInfo.

    Yields:
        Their names: of a sparse tensor those of its values, indices and shape.
    """
    kind = info.WhichOneof("encoding")
    if kind == "name":
        yield info.name
    elif kind == "coo_sparse":
        yield from (name for _, name in info.coo_sparse.ListFields())
    else:
        for component in info.composite_tensor.components:
            yield from tensor_names(component)
