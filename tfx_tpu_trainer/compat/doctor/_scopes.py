"""Which assignment a name goes back to: Python's scopes."""

from __future__ import annotations

import ast


class Scope:
    """A module, class, function or comprehension, and what is assigned in it.

    Attributes:
        outer: The scope around it; `None` for the module.
        is_class: Whether it is a class, whose names its methods don't see.
        is_comprehension: Whether it is a comprehension, out of which `:=` assigns.
    """

    def __init__(
        self,
        outer: Scope | None = None,
        *,
        is_class: bool = False,
        is_comprehension: bool = False,
    ) -> None:
        """Makes an empty scope."""
        self.outer = outer
        self.is_class = is_class
        self.is_comprehension = is_comprehension
        self._assigned: dict[str, list[ast.stmt | None]] = {}
        self._elsewhere: dict[str, Scope] = {}

    def assign(self, name: str, statement: ast.stmt | None = None) -> None:
        """Notes that a name is assigned here."""
        self._elsewhere.get(name, self)._assigned.setdefault(name, []).append(statement)

    def declare_global(self, name: str) -> None:
        """Notes a `global` name: what assigns it here assigns it in the module."""
        self._elsewhere[name] = self._module

    @property
    def _module(self) -> Scope:
        return self.outer._module if self.outer is not None else self

    def assignments(self, name: str) -> list[ast.stmt | None]:
        """Returns what assigns the name that is seen here; nothing where nothing does."""
        scope: Scope | None = self._elsewhere.get(name, self)
        while scope is not None:
            if name in scope._assigned:
                return scope._assigned[name]
            scope = scope.outer
            while scope is not None and scope.is_class:
                scope = scope.outer
        return []
