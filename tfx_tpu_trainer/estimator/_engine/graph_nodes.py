"""Traverses the nodes of graphs and of their functions, and finds and orders those that change variables."""

from __future__ import annotations

import collections
import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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


CHANGES = (
    "Assign",
    "ResourceApply",
    "ResourceSparseApply",
    "ResourceScatter",
    "ResourceStridedSliceAssign",
)
"""Prefixes of the types of ops that change a variable."""
# Attributes with the types of the outputs of a call, a conditional or a loop.
_OUTPUT_TYPES = ("Tout", "T")
_HANDLE_TYPES = (tf.resource.as_datatype_enum, tf.variant.as_datatype_enum)


class VariableChanges:
    """Finds out whether a node changes a variable, itself or in a function that it calls."""

    def __init__(self, library: Any, *, changes: Sequence[str] = CHANGES) -> None:
        self._changes = tuple(changes)
        functions = functions_of(library)
        self._functions = functions_with(functions, lambda node: node.op.startswith(self._changes))

    def made_by(self, node: v1.NodeDef) -> bool:
        """Returns whether a node changes a variable."""
        if node.op.startswith(self._changes) or node.op in self._functions:
            return True
        if not self._functions:
            return False
        return any(name in self._functions for name in called_functions(node))


def reads_before_changes(sources: Sequence[Collection[int]], changes: Sequence[bool]) -> list[int]:
    """Orders nodes so that a function runs them as a session's graph does."""
    # A function runs the reads and writes of a variable in the order of its nodes; a session's
    # graph runs a node as soon as its inputs exist. So in a session, a read that was made after the
    # train_op, but does not wait for it, gives the value before the step. The same holds in a
    # function if, among the nodes that could come next, those that change a variable come last; else
    # the nodes keep the model's order.
    # Kahn's algorithm with a heap: (False, number) comes before (True, number). The nodes
    # [w.assign(0), w.read()], neither of which waits for the other, become [w.read(), w.assign(0)].
    waiting = [len(set(before)) for before in sources]
    readers: list[list[int]] = [[] for _ in sources]
    for number, before in enumerate(sources):
        for source in set(before):
            readers[source].append(number)
    ready = [(changes[number], number) for number, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, number = heapq.heappop(ready)
        order.append(number)
        for reader in readers[number]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, (changes[reader], reader))
    return order


def waiting_for_reads(nodes: Sequence[v1.NodeDef], changes: Sequence[bool]) -> list[v1.NodeDef]:
    """Makes each change of a variable wait for earlier reads in conditionals and calls."""
    # TensorFlow makes a change wait for a conditional that reads the variable. But conditionals are inlined when they
    # run, and then only a wait for their results covers the reads in them. `changed` has handles; a name that matches
    # by chance only adds a wait. Each wait is for an earlier node, so the nodes can still run in this order.
    changed = {name for node, does in zip(nodes, changes) if does for name in node.input}
    reads: dict[str, list[str]] = {}
    result = []
    for node, does in zip(nodes, changes):
        result.append(node)
        inputs = {name for name in node.input if not name.startswith("^")}
        if does:
            node.input.extend(
                dict.fromkeys(f"^{end}" for i in sorted(inputs) for end in reads.get(i, ()))
            )
        elif inputs & changed and calls_functions(node):
            ends = list(_results(node))
            result += ends
            for name in inputs & changed:
                reads.setdefault(name, []).extend(end.name for end in ends)
    return result


def calls_functions(node: v1.NodeDef) -> bool:
    """Returns whether a node calls functions: a call, a conditional or a loop."""
    return any(attr.HasField("func") or attr.list.func for attr in node.attr.values())


def _results(node: v1.NodeDef) -> Iterator[v1.NodeDef]:
    """Yields nodes that run once a call's results exist."""
    lists = [node.attr[name].list.type for name in _OUTPUT_TYPES if name in node.attr]
    for index, dtype in enumerate(lists[0] if lists else ()):
        if dtype not in _HANDLE_TYPES:
            end = v1.NodeDef(name=f"{node.name}/result{index}", op="Identity")
            end.input.append(f"{node.name}:{index}")
            end.attr["T"].type = dtype
            yield end
