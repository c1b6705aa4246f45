"""A program as the rules see it: the names it uses in full, its calls, functions and imports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst
from libcst import metadata

from tfx_tpu_trainer.doctor.parts import Binding, Call, Function, Place, Use


class NotPythonError(ValueError):
    """A text that Python 3 can't parse; the message names the line."""


class Program:
    """A parsed program; `read_program` fills in what it holds.

    Attributes:
        text: Its text.
        bindings: What it imports.
        uses: The imported names that it uses.
        calls: Its calls.
        functions: Its functions.
        bound_names: All names that anything in it is bound to.
    """

    def __init__(self, text: str) -> None:
        """Parses the text.

        Args:
            text: A Python program.

        Raises:
            NotPythonError: If it is none; the message names the line.
        """
        self.text = text
        self.source = text.encode()
        try:
            # The tree is this class's own, so no copy is needed.
            wrapper = metadata.MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        except cst.ParserSyntaxError as error:
            raise NotPythonError(f"line {error.raw_line}: {_reason(error)}") from None
        self.module = wrapper.module
        self._positions = wrapper.resolve(metadata.PositionProvider)
        self._spans = wrapper.resolve(metadata.ByteSpanPositionProvider)
        self._scopes = wrapper.resolve(metadata.ScopeProvider)
        self._parents = wrapper.resolve(metadata.ParentNodeProvider)
        self.bound_names = {
            assignment.name
            for scope in set(self._scopes.values())
            if scope is not None
            for assignment in scope.assignments
        }
        self.bindings: list[Binding] = []
        self.uses: list[Use] = []
        self.calls: list[Call] = []
        self.functions: list[Function] = []
        self._by_statement: dict[tuple[int, str], Binding] = {}

    def index_bindings(self) -> None:
        """Makes names known by their imports, once all are found, and adds names assigned to them."""
        self._by_statement = {
            (id(binding.statement), binding.local): binding for binding in self.bindings
        }
        self._bind_assigned_names()

    def place(self, node: cst.CSTNode) -> Place:
        """Returns a node's place, without the white space around it."""
        position, span = self._positions[node].start, self._spans[node]
        return Place(position.line, position.column + 1, span.start, span.start + span.length)

    def written(self, node: cst.CSTNode) -> str:
        """Returns the text of a node."""
        place = self.place(node)
        return self.source[place.start : place.end].decode()

    def parents(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Goes from a node's parent to the module."""
        while (parent := self._parents.get(node)) is not None:
            yield parent
            node = parent

    def full_name(self, node: cst.BaseExpression) -> tuple[str, Binding] | None:
        """Returns what a name with dots stands for, if it is imported, and its import."""
        parts: list[str] = []
        while isinstance(node, cst.Attribute):
            parts.insert(0, node.attr.value)
            node = node.value
        if not isinstance(node, cst.Name):
            return None
        binding = self._binding(node)
        return (".".join([binding.name, *parts]), binding) if binding is not None else None

    def name_of(self, node: cst.BaseExpression | None) -> str:
        """Returns a name in full; "" for what is no imported name."""
        found = self.full_name(node) if node is not None else None
        return found[0] if found else ""

    def function_named(self, name: str) -> Function | None:
        """Returns the function of a name, the first of several."""
        return next((each for each in self.functions if each.name == name), None)

    def _binding(self, name: cst.Name) -> Binding | None:
        scope = self._scopes.get(name)
        if scope is None:
            return None
        found = [
            binding
            for assignment in scope[name.value]
            if (binding := self._binding_of(assignment, name.value)) is not None
        ]
        # Of a try with several imports, the one that works today counts.
        return max(found, key=lambda each: (each.works_today, each.place.start), default=None)

    def _binding_of(self, assignment: metadata.BaseAssignment, local: str) -> Binding | None:
        if isinstance(assignment, metadata.ImportAssignment):
            return self._by_statement.get((id(assignment.node), local))
        if isinstance(assignment, metadata.Assignment):
            statement = next(
                (each for each in self.parents(assignment.node) if isinstance(each, cst.Assign)),
                None,
            )
            return self._by_statement.get((id(statement), local)) if statement else None
        return None

    def _bind_assigned_names(self) -> None:
        """Takes `flags = tf.flags` at the top of the module for the import that it stands for."""
        for line in self.module.body:
            statements: Sequence[cst.BaseSmallStatement] = (
                line.body if isinstance(line, cst.SimpleStatementLine) else ()
            )
            for statement in statements:
                if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
                    continue
                target = statement.targets[0].target
                found = self.full_name(statement.value)
                if not isinstance(target, cst.Name) or found is None:
                    continue
                binding = Binding(
                    name=found[0],
                    local=target.value,
                    imported=found[0],
                    place=self.place(target),
                    statement=statement,
                    statement_place=self.place(statement),
                    assigned=True,
                )
                self.bindings.append(binding)
                self._by_statement[id(statement), target.value] = binding


def _reason(error: cst.ParserSyntaxError) -> str:
    lines = error.message.strip().splitlines()
    return f"{lines[0] if lines else 'it'} (a program for Python 2 goes through 2to3 first)"
