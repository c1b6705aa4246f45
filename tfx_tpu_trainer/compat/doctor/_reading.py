"""Reads a program's tree: first its imports, functions and calls, then the uses of its imports."""

import ast
import dataclasses
import operator
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

from tfx_tpu_trainer.compat.doctor._program import (
    Binding,
    Call,
    Function,
    FunctionNode,
    Place,
    Program,
    Scope,
    Use,
)

_IMPORT_ERRORS: Final = {"ImportError", "ModuleNotFoundError", "AttributeError", "Exception"}
_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# Before 3.12, Python's places inside f-strings may be wrong.
_F_STRINGS_ARE_PLACED: Final = sys.version_info >= (3, 12)


def read_program(text: str) -> Program:
    """Parses a program and finds its imports, uses, calls and definitions."""
    program = Program(text)
    _Reading(program).read()
    return program


@dataclasses.dataclass(frozen=True)
class _Around:
    """The context of a node.

    Attributes:
        scope: The scope that its names are looked up in.
        function: The function.
        guarded: Whether an `except ImportError` follows.
        in_string: Whether it is inside an f-string.
    """

    scope: Scope
    function: Function | None = None
    guarded: bool = False
    in_string: bool = False


# Two passes, since a use may precede its import: a function's body is read before the `import` below it. The first pass
# fills in scopes and bindings and only collects names and calls; the second resolves them.
class _Reading:
    """Reads the tree once in the order of the text, and then the names that it found."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._names: list[tuple[ast.Attribute | ast.Name, _Around]] = []
        self._calls: list[tuple[ast.Call, Function | None]] = []
        self._versions = VersionTests()
        # A stack instead of recursion: a sum of a thousand terms is a thousand nodes deep.
        self._ahead: list[tuple[ast.AST, ast.AST, _Around]] = []

    def read(self) -> None:
        """Fills in the program."""
        program = self._program
        self._go_into(program.tree, _Around(Scope()))
        while self._ahead:
            node, parent, around = self._ahead.pop()
            program.parents[node] = parent
            self._look_at(node, around)
        program.index_bindings()
        for call, function in self._calls:
            self._call(call, function)
        for name, around in self._names:
            self._use(name, around)

    def _go_into(self, node: ast.AST, around: _Around) -> None:
        self._add(node, ((child, around) for child in ast.iter_child_nodes(node)))

    def _add(self, parent: ast.AST, children: Iterator[tuple[ast.AST, _Around]]) -> None:
        # A stack returns the last one first, so reversed nodes come in the order of the text.
        self._ahead.extend((child, parent, around) for child, around in reversed([*children]))

    def _look_at(self, node: ast.AST, around: _Around) -> None:
        if isinstance(node, ast.Name):
            self._program.scopes[node] = around.scope
            if isinstance(node.ctx, ast.Load):
                self._names.append((node, around))
            else:
                self._assign(node, around)
        elif isinstance(node, ast.Attribute):
            self._attribute(node, around)
        elif isinstance(node, ast.Call):
            self._calls.append((node, around.function))
            self._go_into(node, around)
        elif isinstance(node, FunctionNode):
            self._function(node, around)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._import(node, around)
        elif isinstance(node, ast.Lambda):
            inner = dataclasses.replace(around, scope=Scope(around.scope))
            self._parameters(node.args, inner.scope)
            self._add(node, iter([*_defaults(node.args, around), (node.body, inner)]))
        elif isinstance(node, ast.ClassDef):
            self._class(node, around)
        elif isinstance(node, _COMPREHENSIONS):
            self._comprehension(node, around)
        elif isinstance(node, ast.If | ast.IfExp):
            self._branches(node, around)
        else:
            self._names_bound_by(node, around.scope)
            if isinstance(node, ast.Try) and _catches_import_errors(node):
                around = dataclasses.replace(around, guarded=True)
            elif isinstance(node, ast.JoinedStr):
                around = dataclasses.replace(around, in_string=not _F_STRINGS_ARE_PLACED)
            self._go_into(node, around)

    def _attribute(self, node: ast.Attribute, around: _Around) -> None:
        if node.attr == "value":
            self._program.values.append(node)
        # A chain such as `tf.compat.v1.train` is one use. Its inner nodes are not visited: `tf.compat` would be a
        # second use.
        inner: ast.expr = node
        while isinstance(inner, ast.Attribute):
            self._program.parents[inner.value] = inner
            inner = inner.value
        if isinstance(inner, ast.Name):
            self._program.scopes[inner] = around.scope
            self._names.append((node, around))
        else:
            # A chain on a call or an index, which contains further names.
            self._ahead.append((inner, self._program.parents[inner], around))

    def _function(self, node: FunctionNode, around: _Around) -> None:
        self._bind(around.scope, node.name)
        parameters = node.args
        named = (*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs)
        names = [each.arg for each in named]
        if parameters.kwarg is not None:
            names.append(f"**{parameters.kwarg.arg}")
        function = Function(
            name=node.name,
            parameters=tuple(names),
            place=self._program.place_of_name(node),
            outer=around.function,
            node=node,
        )
        self._program.functions.append(function)
        inner = dataclasses.replace(around, scope=Scope(around.scope), function=function)
        self._parameters(parameters, inner.scope)
        annotations = [each.annotation for each in named] + [node.returns]
        self._add(
            node,
            iter(
                [
                    *((each, around) for each in node.decorator_list),
                    *_defaults(parameters, around),
                    *((each, around) for each in annotations if each is not None),
                    *((each, inner) for each in node.body),
                ]
            ),
        )

    def _parameters(self, parameters: ast.arguments, scope: Scope) -> None:
        named = (*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs)
        for each in (*named, parameters.vararg, parameters.kwarg):
            if each is not None:
                self._bind(scope, each.arg)

    def _class(self, node: ast.ClassDef, around: _Around) -> None:
        self._bind(around.scope, node.name)
        inner = dataclasses.replace(around, scope=Scope(around.scope, is_class=True))
        head = (*node.decorator_list, *node.bases, *node.keywords)
        self._add(
            node, iter([*((each, around) for each in head), *((each, inner) for each in node.body)])
        )

    def _comprehension(
        self,
        node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp,
        around: _Around,
    ) -> None:
        inner = dataclasses.replace(around, scope=Scope(around.scope, is_comprehension=True))
        values = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        children: list[tuple[ast.AST, _Around]] = [(each, inner) for each in values]
        for loop in node.generators:
            # The first loop's values are looked up outside.
            children.append((loop.iter, around if loop is node.generators[0] else inner))
            children += [(each, inner) for each in (loop.target, *loop.ifs)]
        self._add(node, iter(children))

    def _branches(self, node: ast.If | ast.IfExp, around: _Around) -> None:
        """Visits an `if`, except a branch that today's TensorFlow version never runs."""
        taken = self._versions.taken_today(node.test)
        children: list[ast.AST] = [node.test]
        for branch, runs in ((node.body, taken is not False), (node.orelse, taken is not True)):
            if runs:
                children += branch if isinstance(branch, list) else [branch]
        self._add(node, ((each, around) for each in children))

    def _names_bound_by(self, node: ast.AST, scope: Scope) -> None:
        if isinstance(node, ast.Global):
            for name in node.names:
                scope.declare_global(name)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            if node.name is not None:
                self._bind(scope, node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest is not None:
            self._bind(scope, node.rest)

    def _assign(self, node: ast.Name, around: _Around) -> None:
        parent, scope = self._program.parents[node], around.scope
        # `:=` in a comprehension binds in the scope around it.
        while isinstance(parent, ast.NamedExpr) and scope.is_comprehension and scope.outer:
            scope = scope.outer
        if isinstance(parent, ast.Assign) and scope.outer is None:
            self._versions.note_assignment(node.id, parent.value)
        while isinstance(parent, ast.Tuple | ast.List | ast.Starred):
            parent = self._program.parents[parent]
        self._bind(scope, node.id, parent if isinstance(parent, ast.Assign) else None)

    def _bind(self, scope: Scope, name: str, statement: ast.stmt | None = None) -> None:
        scope.assign(name, statement)
        self._program.bound_names.add(name)

    def _import(self, node: ast.Import | ast.ImportFrom, around: _Around) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                # `import a.b` binds a.
                first = alias.name.partition(".")[0]
                local = alias.asname or first
                name = alias.name if alias.asname else first
                self._bind_import(node, around, alias, name, alias.name, local)
            return
        for alias in node.names:
            local = alias.asname or alias.name
            if node.level or node.module is None or alias.name == "*":
                self._bind(around.scope, local)
                self._program.relative.add(local)
                continue
            name = f"{node.module}.{alias.name}"
            self._bind_import(node, around, alias, name, name, local)

    def _bind_import(
        self,
        node: ast.Import | ast.ImportFrom,
        around: _Around,
        alias: ast.alias,
        name: str,
        imported: str,
        local: str,
    ) -> None:
        self._bind(around.scope, local, node)
        self._versions.note_import(name, local)
        self._program.bindings.append(
            Binding(
                name=name,
                local=local,
                imported=imported,
                place=self._program.place(alias),
                statement=node,
                statement_place=self._program.place(node),
                guarded=around.guarded,
                in_function=around.function is not None,
            )
        )

    def _call(self, node: ast.Call, function: Function | None) -> None:
        name = self._program.name_of(node.func) or _written_name(node.func)
        arguments = {
            str(position): value
            for position, value in enumerate(node.args)
            if not isinstance(value, ast.Starred)
        }
        arguments |= {each.arg: each.value for each in node.keywords if each.arg is not None}
        self._program.calls.append(
            Call(
                name=name,
                attribute=name.rpartition(".")[2],
                arguments=arguments,
                place=self._program.place(node),
                name_place=self._program.place(node.func),
                function=function,
                node=node,
            )
        )

    def _use(self, node: ast.Attribute | ast.Name, around: _Around) -> None:
        found = self._program.full_name(node)
        if found is None:
            return
        name, binding = found
        places: list[Place] = []
        written: list[str] = []
        inner: ast.expr = node
        while isinstance(inner, ast.Attribute):
            places.append(self._program.place(inner))
            written.append(inner.attr)
            inner = inner.value
        assert isinstance(inner, ast.Name)
        places.append(self._program.place(inner))
        # If Python's place is wrong, the text there differs, and the use can't be edited.
        if around.in_string:
            text = ".".join([inner.id, *reversed(written)])
            if self._program.written(node) != text:
                return
        use = Use(name, binding, tuple(reversed(places)), node)
        self._program.uses.append(use)
        binding.uses.append(use)


def _defaults(parameters: ast.arguments, around: _Around) -> Iterator[tuple[ast.AST, _Around]]:
    for each in (*parameters.defaults, *parameters.kw_defaults):
        if each is not None:
            yield each, around


def _catches_import_errors(node: ast.Try) -> bool:
    return any(
        handler.type is None
        or any(
            isinstance(each, ast.Name) and each.id in _IMPORT_ERRORS
            for each in (
                handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
            )
        )
        for handler in node.handlers
    )


def _written_name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _written_name(node.value)
        return f"{before}.{node.attr}" if before else node.attr
    return ""


# Any supported release would do: programs test whether it is 2, or later than 2.0.
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
    """The test depends on more than the version."""


class VersionTests:
    """A program's names for TensorFlow and its version, and the results of its version tests."""

    def __init__(self) -> None:
        self._modules: set[str] = set()
        self._versions: set[str] = set()
        self._assigned: dict[str, ast.expr] = {}

    def note_import(self, name: str, local: str) -> None:
        """Records an import."""
        module, _, last = name.rpartition(".")
        if name in ("tensorflow", "tensorflow.compat.v1", "tensorflow.compat.v2"):
            self._modules.add(local)
        elif module in ("tensorflow", "tensorflow.version") and last in _VERSIONS:
            self._versions.add(local)

    def note_assignment(self, name: str, value: ast.expr) -> None:
        """Records an assignment, as in `IS_TF2 = tf.__version__.startswith("2")`."""
        self._assigned[name] = ast.Name("", ast.Load()) if name in self._assigned else value

    def taken_today(self, test: ast.expr) -> bool | None:
        """Returns the result of a test if TensorFlow's version decides it."""
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
        """Combines `and` and `or`; one part may decide alone, regardless of the others."""
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
        # Versions compare as lists of numbers, like the parsers' versions: [2, 16, 2] is more than [2, 4], but "2.16.2"
        # is less than "2.4".
        if name in _PARSERS and len(arguments) == 1:
            return [int(each) for each in re.findall(r"\d+", str(arguments[0]))]
        if name in _CONVERSIONS and len(arguments) == 1:
            return _CONVERSIONS[name](arguments[0])
        raise _UnknownError
