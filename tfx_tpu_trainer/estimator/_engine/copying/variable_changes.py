"""Finds the ops that change variables, and orders their copies in a function."""

import heapq
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.graph_nodes import (
    called_functions,
    functions_of,
    functions_with,
)

v1 = tf.compat.v1
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
