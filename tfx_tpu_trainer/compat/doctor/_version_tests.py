"""What a program's tests of TensorFlow's version come to today: `if tf.__version__ >= "2.0":` is taken."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import Any, Final

# A release of both lines that we run on would do: programs ask whether it is 2, or later than 2.0.
_TODAY: Final = "2.16.2"
_VERSIONS: Final = ("__version__", "VERSION")
_COMPARED: Final[dict[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
_PARSERS: Final = ("LooseVersion", "StrictVersion", "Version", "parse", "parse_version")
_CONVERSIONS: Final[dict[str, Callable[[Any], Any]]] = {"int": int, "float": float, "str": str}
_METHODS: Final = ("startswith", "split")


class _UnknownError(Exception):
    """Something else than the version decides."""


class VersionTests:
    """The names that a program has for TensorFlow and for its version, and what its tests come to."""

    def __init__(self) -> None:
        """Knows no name yet."""
        self._modules: set[str] = set()
        self._versions: set[str] = set()
        self._assigned: dict[str, ast.expr] = {}

    def note_import(self, name: str, local: str) -> None:
        """Notes an import."""
        module, _, last = name.rpartition(".")
        if name in ("tensorflow", "tensorflow.compat.v1", "tensorflow.compat.v2"):
            self._modules.add(local)
        elif module in ("tensorflow", "tensorflow.version") and last in _VERSIONS:
            self._versions.add(local)

    def note_assignment(self, name: str, value: ast.expr) -> None:
        """Notes what a name is assigned to, as in `IS_TF2 = tf.__version__.startswith("2")`."""
        self._assigned[name] = ast.Name("", ast.Load()) if name in self._assigned else value

    def taken_today(self, test: ast.expr) -> bool | None:
        """Says what a test comes to, if TensorFlow's version decides it."""
        if not any(self._is_version(each) for each in self._all_of(test)):
            return None
        try:
            return bool(self._value(test))
        except (_UnknownError, ValueError, TypeError, IndexError, RecursionError):
            return None

    def _all_of(self, test: ast.expr) -> list[ast.AST]:
        found = list(ast.walk(test))
        for each in found[:]:
            if isinstance(each, ast.Name) and each.id in self._assigned:
                found += ast.walk(self._assigned[each.id])
        return found

    def _is_version(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self._versions
        if not isinstance(node, ast.Attribute) or node.attr not in _VERSIONS:
            return False
        inner = node.value
        if isinstance(inner, ast.Attribute) and inner.attr == "version":
            inner = inner.value
        return isinstance(inner, ast.Name) and inner.id in self._modules

    def _value(self, node: ast.expr) -> Any:
        if self._is_version(node):
            return _TODAY
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name) and node.id in self._assigned:
            return self._value(self._assigned[node.id])
        if isinstance(node, ast.List | ast.Tuple):
            return [self._value(each) for each in node.elts]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return not self._value(node.operand)
        if isinstance(node, ast.BoolOp):
            return self._combined(node)
        if isinstance(node, ast.Subscript):
            return self._value(node.value)[self._index(node.slice)]
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            compare = _COMPARED.get(type(node.ops[0]))
            if compare is not None:
                return compare(self._value(node.left), self._value(node.comparators[0]))
        if isinstance(node, ast.Call) and not node.keywords:
            return self._called(node)
        raise _UnknownError

    def _combined(self, node: ast.BoolOp) -> bool:
        """Returns what `and` and `or` come to; one part may decide alone, whatever the others are."""
        decisive, unknown = isinstance(node.op, ast.Or), False
        for each in node.values:
            try:
                if bool(self._value(each)) is decisive:
                    return decisive
            except _UnknownError:
                unknown = True
        if unknown:
            raise _UnknownError
        return not decisive

    def _index(self, node: ast.expr) -> Any:
        if not isinstance(node, ast.Slice):
            return self._value(node)
        ends = (node.lower, node.upper, node.step)
        return slice(*(self._value(each) if each is not None else None for each in ends))

    def _called(self, node: ast.Call) -> Any:
        function = node.func
        name = function.id if isinstance(function, ast.Name) else ""
        if isinstance(function, ast.Attribute):
            name = function.attr
        arguments = [self._value(each) for each in node.args]
        if isinstance(function, ast.Attribute) and name in _METHODS:
            return getattr(str(self._value(function.value)), name)(*arguments)
        if name in _PARSERS and len(arguments) == 1:
            return [int(each) for each in re.findall(r"\d+", str(arguments[0]))]
        if name in _CONVERSIONS and len(arguments) == 1:
            return _CONVERSIONS[name](arguments[0])
        raise _UnknownError
