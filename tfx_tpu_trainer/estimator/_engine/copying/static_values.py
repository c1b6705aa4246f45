"""Values that are known before a graph runs, followed into functions and out of them.

TensorFlow's gradients hand the groups of cores of an exchange on: as a result of the function that has
it, and as an argument of the function that has its gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1

_PASSING_ON = frozenset({"Identity", "StopGradient", "PreventGradient"})
_FUNCTION_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_UNREAD_MASKS = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


class Scope:
    """A graph, or the body of a function in one call of it.

    Attributes:
        asked_outside: Whether a value was looked for among the arguments of the call: what was
            made with it holds for this call only.
    """

    def __init__(
        self,
        find: Callable[[str], v1.NodeDef | None],
        functions: Mapping[str, Any],
        *,
        arguments: Sequence[str] = (),
        given: Sequence[str] = (),
        outer: Scope | None = None,
    ) -> None:
        self.asked_outside = False
        self._find = find
        self._functions = functions
        self._arguments = {name: number for number, name in enumerate(arguments)}
        self._given = given
        self._outer = outer

    def value(self, reference: str) -> np.ndarray | None:
        """Returns the value that a reference is to, `None` where it isn't known."""
        name, *output = reference.split(":")
        if name in self._arguments:
            self.asked_outside = True
            number = self._arguments[name]
            given = self._given[number] if number < len(self._given) else ""
            return self._outer.value(given) if self._outer is not None and given else None
        node = self._find(name)
        if node is None:
            return None
        if node.op == "Const":
            return tf.make_ndarray(node.attr["value"].tensor)
        if node.op in _PASSING_ON:
            return self.value(node.input[0])
        if node.op == "StridedSlice":
            return self._slice(node)
        if node.op in _FUNCTION_CALLS:
            return self._result(node, int(output[-1]) if output else 0)
        return None

    def of_call(self, function: str, given: Sequence[str]) -> Scope:
        """Returns the scope of a function's body in one call."""
        definition = self._functions[function]
        nodes = {inner.name: inner for inner in definition.node_def}
        arguments = [argument.name for argument in definition.signature.input_arg]
        return Scope(nodes.get, self._functions, arguments=arguments, given=given, outer=self)

    def unchanged(self, body: str, given: Sequence[str]) -> list[str]:
        """Returns what a loop begins with, empty where a round may change it."""
        definition = self._functions[body]
        inner = self.of_call(body, given)
        results = [inner._origin(definition.ret[r.name]) for r in definition.signature.output_arg]
        arguments = [argument.name for argument in definition.signature.input_arg]
        return [g if a == r else "" for g, a, r in zip(given, arguments, results)]

    def _origin(self, reference: str) -> str:
        """Returns the name of the argument or node that a reference's value is passed on from."""
        name = reference.split(":")[0]
        node = None if name in self._arguments else self._find(name)
        return self._origin(node.input[0]) if node and node.op in _PASSING_ON else name

    def _result(self, node: v1.NodeDef, number: int) -> np.ndarray | None:
        function = node.attr["f"].func.name
        if function not in self._functions:
            return None
        definition = self._functions[function]
        result = definition.ret[definition.signature.output_arg[number].name]
        given = [each for each in node.input if not each.startswith("^")]
        return self.of_call(function, given).value(result)

    def _slice(self, node: v1.NodeDef) -> np.ndarray | None:
        whole, *bounds = (self.value(reference) for reference in node.input[:4])
        if whole is None or any(node.attr[mask].i for mask in _UNREAD_MASKS):
            return None
        begin, end, strides = (None if bound is None else bound.tolist() for bound in bounds)
        if begin is None or end is None or strides is None:
            return None
        from_start, to_end = node.attr["begin_mask"].i, node.attr["end_mask"].i
        parts = []
        for axis, stride in enumerate(strides):
            first = None if from_start & (1 << axis) else begin[axis]
            last = None if to_end & (1 << axis) else end[axis]
            parts.append(slice(first, last, stride))
        return whole[tuple(parts)]
