"""Finds out which ops of a graph change variables, in functions that they call too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1

CHANGES = (
    "Assign",
    "ResourceApply",
    "ResourceSparseApply",
    "ResourceScatter",
    "ResourceStridedSliceAssign",
)
"""What the types of ops that change a variable begin with."""


class VariableChanges:
    """Tells of an op whether it changes a variable, itself or in a function."""

    def __init__(self, library: Any, *, changes: Sequence[str] = CHANGES) -> None:
        """Reads the functions of a graph.

        Args:
            library: The `library` of its GraphDef.
            changes: What the types of ops that count begin with. Defaults to `CHANGES`.
        """
        self._changes = tuple(changes)
        bodies = {function.signature.name: function.node_def for function in library.function}
        self._functions: set[str] = set()
        found = True
        while found:
            new = {
                name
                for name, body in bodies.items()
                if name not in self._functions and any(self.made_by(node) for node in body)
            }
            self._functions |= new
            found = bool(new)

    def made_by(self, node: v1.NodeDef) -> bool:
        """Tells whether a node changes a variable."""
        if node.op.startswith(self._changes) or node.op in self._functions:
            return True
        return any(
            attr.func.name in self._functions
            or any(function.name in self._functions for function in attr.list.func)
            for attr in node.attr.values()
        )
