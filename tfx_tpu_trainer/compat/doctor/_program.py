"""Represents a program for the rules: scopes, imports, uses of names, calls and functions, with their places."""

from __future__ import annotations

import ast
import dataclasses
import re
import warnings
from collections.abc import Iterator
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import TextEdit


# Names follow Python's scopes: after `def f(tf): return tf.Session()` that `tf` is a parameter, and no finding. Each
# name in the tree is kept with its scope, from which `assignments` walks outwards. Two of Python's rules surprise:
# methods don't see the names of their class, so classes are skipped on the way out, and `:=` in a comprehension
# assigns in the function around it.
class Scope:
    """A module, class, function or comprehension, with its assignments.

    Attributes:
        outer: The scope around it; `None` for the module.
        is_class: Whether it is a class, whose names its methods don't see.
        is_comprehension: Whether it is a comprehension; `:=` in it assigns in the scope around it.
    """

    def __init__(
        self,
        outer: Scope | None = None,
        *,
        is_class: bool = False,
        is_comprehension: bool = False,
    ) -> None:
        self.outer = outer
        self.is_class = is_class
        self.is_comprehension = is_comprehension
        self._assigned: dict[str, list[ast.stmt | None]] = {}
        self._elsewhere: dict[str, Scope] = {}

    def assign(self, name: str, statement: ast.stmt | None = None) -> None:
        """Records an assignment of a name in this scope."""
        self._elsewhere.get(name, self)._assigned.setdefault(name, []).append(statement)

    def declare_global(self, name: str) -> None:
        """Records a `global` name: assignments to it bind the module's name."""
        self._elsewhere[name] = self._module

    @property
    def _module(self) -> Scope:
        return self.outer._module if self.outer is not None else self

    def assignments(self, name: str) -> list[ast.stmt | None]:
        """Returns the assignments of the name that is visible here, if any."""
        scope: Scope | None = self._elsewhere.get(name, self)
        while scope is not None:
            if name in scope._assigned:
                return scope._assigned[name]
            scope = scope.outer
            while scope is not None and scope.is_class:
                scope = scope.outer
        return []


FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclasses.dataclass(frozen=True)
class Place:
    """The place of a node.

    Attributes:
        line: Line, from 1.
        column: Column, from 1.
        start: Its first UTF-8 byte, from 0.
        end: The byte after its last.
    """

    line: int
    column: int
    start: int
    end: int

    def replaced_by(self, text: str) -> TextEdit:
        """Returns the edit that replaces this place by a text."""
        return TextEdit(self.start, self.end, text)


@dataclasses.dataclass(frozen=True)
class Use:
    """The use of a dotted name.

    Attributes:
        name: In full, as `tensorflow.contrib.tpu.TPUEstimator` for `tf.contrib.tpu.TPUEstimator`.
        binding: The import or assignment that its first part comes from.
        places: The place of each written prefix; the last one is the whole name.
        node: The outermost node.
    """

    name: str
    binding: Binding
    places: tuple[Place, ...]
    node: ast.expr

    @property
    def place(self) -> Place:
        """The place of the whole name."""
        return self.places[-1]

    def prefix(self, name: str) -> Place:
        """Returns the place of the written part that means `name`, a prefix of `self.name`."""
        surplus = self.name.count(".") - name.count(".")
        return self.places[len(self.places) - 1 - surplus]

    def writes(self, name: str) -> bool:
        """Returns whether `name`, a prefix, ends in the written part instead of in the binding."""
        return self.name.count(".") - name.count(".") < len(self.places)


@dataclasses.dataclass(eq=False)
class Binding:
    """A name bound by an import, or by an assignment of an imported name.

    Attributes:
        name: The full name of the object that it is bound to.
        local: What the program calls it.
        imported: The imported name: longer than `name` in `import a.b`, which binds `a`.
        place: Where the import names it, or the assignment.
        statement: The import or assignment.
        statement_place: Its place.
        guarded: Whether an `except ImportError` follows.
        assigned: Whether it is an assignment.
        in_function: Whether it is made inside a function.
        uses: The uses of it.
    """

    name: str
    local: str
    imported: str
    place: Place
    statement: ast.Import | ast.ImportFrom | ast.Assign
    statement_place: Place
    guarded: bool = False
    assigned: bool = False
    in_function: bool = False
    uses: list[Use] = dataclasses.field(default_factory=list)

    @property
    def works_today(self) -> bool:
        """Whether this is an alternative that works today, in a program for several versions."""
        return self.name.startswith(("tensorflow.compat.", "tensorflow_estimator", "tfx_tpu_"))


@dataclasses.dataclass(eq=False)
class Function:
    """A function of the program.

    Attributes:
        name: Its name.
        parameters: The names of its parameters, in order; `**` and its name at the end.
        place: The place of its name.
        outer: The function around it.
        node: Its definition.
    """

    name: str
    parameters: tuple[str, ...]
    place: Place
    outer: Function | None
    node: FunctionNode

    @property
    def takes_anything(self) -> bool:
        """Returns whether it takes arbitrary keywords."""
        return any(name.startswith("**") for name in self.parameters)

    def is_within(self, other: Function) -> bool:
        """Returns whether the function is `other`, or is defined inside it."""
        function: Function | None = self
        while function is not None and function is not other:
            function = function.outer
        return function is other


@dataclasses.dataclass(eq=False)
class Call:
    """A call.

    Attributes:
        name: The full name of an imported function, else the name as written, such as `dataset.batch`; only the last
            attribute if it follows another call.
        attribute: The last part of it.
        arguments: By keyword, and by position from `"0"`.
        place: The call's.
        name_place: The function's, in it.
        function: The function that contains the call.
        node: The call.
    """

    name: str
    attribute: str
    arguments: dict[str, ast.expr]
    place: Place
    name_place: Place
    function: Function | None
    node: ast.Call

    def argument(self, keyword: str, position: int | None = None) -> ast.expr | None:
        """Returns an argument by keyword or position; `None` if it is not given."""
        if keyword in self.arguments:
            return self.arguments[keyword]
        return self.arguments.get(str(position)) if position is not None else None

    @property
    def has_spread(self) -> bool:
        """Whether `*` or `**` may hide which arguments are given."""
        return any(isinstance(each, ast.Starred) for each in self.node.args) or any(
            each.arg is None for each in self.node.keywords
        )


_V1: Final = "tensorflow.compat.v1"
_COMPAT_TWICE: Final = re.compile(r"tensorflow(\.compat\.v[12])+\.compat\.(?=v[12]\b)")
_LINE_END: Final = re.compile(rb"\r\n|\r|\n")
_BLANK: Final = rb"(?:[ \t\f]|\\\r?\n)"
_DEFINED_NAME: Final = re.compile(rb"(?:async" + _BLANK + rb"+)?def" + _BLANK + rb"+")
_FROM: Final = re.compile(rb"from" + _BLANK + rb"+")


class NotPythonError(ValueError):
    """A text that Python 3 can't parse; the message names the line.

    Attributes:
        line: The line, from 1.
        reason: What is wrong there.
    """

    def __init__(self, line: int, reason: str, *, cell: int | None = None) -> None:
        """Writes the message.

        Args:
            line: The line, from 1.
            reason: What is wrong there.
            cell: The code cell of a notebook that the line is in. Defaults to `None`.
        """
        super().__init__(f"{f'cell {cell}, ' if cell else ''}line {line}: {reason}")
        self.line = line
        self.reason = reason


class Program:
    """A parsed program; `read_program` fills in its contents.

    Attributes:
        text: Its text.
        source: The same in UTF-8, which all places count in.
        tree: Its syntax tree.
        bindings: Its imports.
        uses: The imported names that it uses.
        calls: Its calls.
        functions: Its functions.
        bound_names: All names that it binds.
        values: The attributes named `value`, of any object.
        relative: The names that it imports relatively, from modules next to it.
        scopes: The scope of each name in the tree.
        parents: The node around each node.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.source = text.encode()
        self.tree = _parsed(text)
        self._line_starts = [0, *(each.end() for each in _LINE_END.finditer(self.source))]
        self.bound_names: set[str] = set()
        self.bindings: list[Binding] = []
        self.uses: list[Use] = []
        self.calls: list[Call] = []
        self.functions: list[Function] = []
        self.values: list[ast.Attribute] = []
        self.relative: set[str] = set()
        self.scopes: dict[ast.Name, Scope] = {}
        self.parents: dict[ast.AST, ast.AST] = {}
        self._by_statement: dict[tuple[int, str], Binding] = {}

    def index_bindings(self) -> None:
        """Indexes imported names once all are found, and adds names assigned from them."""
        self._by_statement = {
            (id(binding.statement), binding.local): binding for binding in self.bindings
        }
        self._bind_assigned_names()

    def place(self, node: ast.expr | ast.stmt | ast.alias | ast.keyword | ast.arg) -> Place:
        """Returns a node's place, without surrounding white space."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._line_starts[node.lineno - 1] + node.col_offset
        return self._place(
            node.lineno, start, self._line_starts[node.end_lineno - 1] + node.end_col_offset
        )

    def place_of_last_part(self, node: ast.Attribute) -> Place:
        """Returns the place of `c` in `a.b.c`, which is on one line."""
        whole = self.place(node)
        assert node.end_lineno is not None
        start = whole.end - len(node.attr.encode())
        return self._place(node.end_lineno, start, whole.end)

    def place_of_keyword(self, node: ast.keyword) -> Place:
        """Returns the place of a keyword in a call, without its value."""
        assert node.arg is not None
        whole = self.place(node)
        return self._place(whole.line, whole.start, whole.start + len(node.arg.encode()))

    def place_of_name(self, node: FunctionNode) -> Place:
        """Returns the place of a function's name in its definition."""
        start = self._line_starts[node.lineno - 1] + node.col_offset
        match = _DEFINED_NAME.match(self.source, start)
        start = match.end() if match else start
        line = node.lineno + self.source.count(b"\n", match.start() if match else start, start)
        return self._place(line, start, start + len(node.name.encode()))

    def place_of_module(self, node: ast.ImportFrom) -> Place | None:
        """Returns the place of the module in `from module import ...`; `None` if it is unusually written."""
        start = self._line_starts[node.lineno - 1] + node.col_offset
        match = _FROM.match(self.source, start)
        module = (node.module or "").encode()
        if match is None or not self.source.startswith(module, match.end()):
            return None
        return self._place(node.lineno, match.end(), match.end() + len(module))

    def _place(self, line: int, start: int, end: int) -> Place:
        column = len(self.source[self._line_starts[line - 1] : start].decode(errors="replace")) + 1
        return Place(line, column, start, end)

    def written(self, node: ast.expr | ast.stmt) -> str:
        """Returns a node's text."""
        place = self.place(node)
        return self.source[place.start : place.end].decode(errors="replace")

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yields a node's ancestors, from its parent to the module."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def full_name(self, node: ast.expr) -> tuple[str, Binding] | None:
        """Returns the full name of a dotted name, if it is imported, and its import."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        binding = self._binding(node)
        if binding is None:
            return None
        name = ".".join([binding.name, *reversed(parts)])
        # `tf.compat.v2` of tf.compat.v1 is the same module.
        return _COMPAT_TWICE.sub("tensorflow.compat.", name), binding

    def name_of(self, node: ast.expr | None) -> str:
        """Returns a name in full; "" if it is not imported."""
        found = self.full_name(node) if node is not None else None
        return found[0] if found else ""

    def function_named(self, name: str) -> Function | None:
        """Returns the first function with a name."""
        return next((each for each in self.functions if each.name == name), None)

    def _binding(self, name: ast.Name) -> Binding | None:
        scope = self.scopes.get(name)
        if scope is None:
            return None
        found = [
            binding
            for statement in scope.assignments(name.id)
            if (binding := self._by_statement.get((id(statement), name.id))) is not None
        ]
        # If a `try` has several imports, the one that works today counts.
        return max(found, key=lambda each: (each.works_today, each.place.start), default=None)

    def _bind_assigned_names(self) -> None:
        """Treats `flags = tf.flags` at the top of the module as an import."""
        for statement in self.tree.body:
            if isinstance(statement, ast.Assign):
                self._bind_assigned(statement)
            elif isinstance(statement, ast.If | ast.Try):
                for inner in ast.walk(statement):
                    # Conditional assignments are ignored, except for TensorFlow itself.
                    if isinstance(inner, ast.Assign) and self.name_of(inner.value) == _V1:
                        self._bind_assigned(inner)

    def _bind_assigned(self, statement: ast.Assign) -> None:
        target = statement.targets[0]
        value = statement.value
        if isinstance(value, ast.IfExp):
            value = value.body if self.name_of(value.body) == _V1 else value.orelse
        found = self.full_name(value)
        if found is None or len(statement.targets) != 1 or not isinstance(target, ast.Name):
            return
        binding = Binding(
            name=found[0],
            local=target.id,
            imported=found[0],
            place=self.place(target),
            statement=statement,
            statement_place=self.place(statement),
            assigned=True,
        )
        self.bindings.append(binding)
        self._by_statement[id(statement), target.id] = binding


def _parsed(text: str) -> ast.Module:
    null = text.find("\0")
    if null >= 0:
        # Python's own message and exception differ between versions.
        line = text.count("\n", 0, null) + 1
        raise NotPythonError(line, "a null byte, which no Python program may contain.")
    try:
        with warnings.catch_warnings():
            # Python's warnings about the program's escape sequences do not matter here.
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as error:
        # Python's hint about numbers with thousands of digits does not apply here.
        reason = str(error.msg).partition("; use sys.")[0]
        raise NotPythonError(
            error.lineno or 1,
            f"{reason} (convert a Python 2 program with 2to3 first)",
        ) from None
    except (RecursionError, MemoryError):
        raise NotPythonError(1, "too deeply nested to parse") from None
