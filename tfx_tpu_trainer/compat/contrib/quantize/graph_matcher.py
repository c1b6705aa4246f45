"""Matches patterns of ops in a graph."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import tensorflow as tf

# The most inputs whose orders are tried one by one; more would take too long.
_MOST_UNORDERED: Final = 8

__all__ = ["GraphMatcher", "MatchResult", "OneofPattern", "OpTypePattern", "Pattern"]


class MatchResult:
    """A match: the op and the tensor of each pattern.

    The tensor is the output that the op of the pattern above it takes, `None` for the root.
    """

    def __init__(self) -> None:
        self._found: dict[Any, tuple[tf.Operation, tf.Tensor | None]] = {}
        self._named: dict[str, Any] = {}

    def add(self, pattern: Pattern, op: tf.Operation, tensor: tf.Tensor | None) -> None:
        """Records a pattern's match."""
        self._found[pattern] = op, tensor
        if pattern.name is not None:
            if self._named.get(pattern.name, pattern) is not pattern:
                raise ValueError(
                    f"Two patterns have the name {pattern.name!r}: give each a unique one."
                )
            self._named[pattern.name] = pattern

    def merge_from(self, other_match_result: MatchResult) -> None:
        """Adds the matches of another result."""
        self._found.update(other_match_result._found)
        self._named.update(other_match_result._named)

    def _get(self, pattern_or_name: Any) -> tuple[Any, Any]:
        pattern: Any
        if isinstance(pattern_or_name, Pattern):
            pattern = pattern_or_name
        elif isinstance(pattern_or_name, str):
            pattern = self._named.get(pattern_or_name)
        else:
            raise ValueError(f"Give a pattern or its name; got {pattern_or_name!r}.")
        return self._found.get(pattern, (None, None))

    def get_op(self, pattern_or_name: Any) -> tf.Operation | None:
        """Returns the op that a pattern matched, or `None`."""
        return self._get(pattern_or_name)[0]

    def get_tensor(self, pattern_or_name: Any) -> tf.Tensor | None:
        """Returns the tensor that a pattern matched, or `None`."""
        return self._get(pattern_or_name)[1]


class Pattern(abc.ABC):
    """A pattern that an op and its inputs must match."""

    @property
    def name(self) -> str | None:
        """The pattern's name in a result, if it has one."""
        return None

    @abc.abstractmethod
    def match(self, op: tf.Operation, tensor: tf.Tensor | None) -> MatchResult | None:
        """Returns the match, or `None` if the op does not match."""


class OpTypePattern(Pattern):
    """An op of certain types whose inputs match patterns."""

    def __init__(
        self,
        op_type: str,
        name: str | None = None,
        inputs: Sequence[Any] | None = None,
        ordered_inputs: bool = True,
    ) -> None:
        self._types, self._name = op_type.split("|"), name
        self._inputs = [
            each if isinstance(each, Pattern) else OpTypePattern(each) for each in inputs or ()
        ]
        self._ordered = ordered_inputs
        if not ordered_inputs and len(self._inputs) > _MOST_UNORDERED:
            raise ValueError(
                f"At most {_MOST_UNORDERED} inputs can be unordered; got {len(self._inputs)}."
            )

    @property
    def name(self) -> str | None:
        """The pattern's name in a result, if it has one."""
        return self._name

    def match(self, op: tf.Operation, tensor: tf.Tensor | None) -> MatchResult | None:
        """Returns the match, or `None` if the op does not match."""
        if "*" not in self._types and op.type not in self._types:
            return None
        result = MatchResult()
        result.add(self, op, tensor)
        if not self._inputs:
            return result
        if len(op.inputs) != len(self._inputs):
            return None
        orders: Iterable[Sequence[Pattern]] = (
            [self._inputs] if self._ordered else itertools.permutations(self._inputs)
        )
        for patterns in orders:
            matched = [each.match(made.op, made) for each, made in zip(patterns, op.inputs)]
            if None not in matched:
                for each in matched:
                    result.merge_from(each)  # type: ignore[arg-type]
                return result
        return None


class OneofPattern(Pattern):
    """One of several patterns, the first that matches."""

    def __init__(self, sub_patterns: Sequence[Pattern]) -> None:
        self._patterns = sub_patterns

    def match(self, op: tf.Operation, tensor: tf.Tensor | None) -> MatchResult | None:
        """Returns the match, or `None` if the op does not match."""
        results = (each.match(op, tensor) for each in self._patterns)
        return next((each for each in results if each is not None), None)


class GraphMatcher:
    """Finds where a graph has a pattern."""

    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern

    def match_op(self, op: tf.Operation) -> MatchResult | None:
        """Returns the match, or `None` if the op does not match."""
        return self._pattern.match(op, None)

    def match_ops(self, ops: Iterable[tf.Operation]) -> Iterator[MatchResult]:
        """Yields the match of each op that has one."""
        for op in ops:
            found = self.match_op(op)
            if found is not None:
                yield found

    def match_graph(self, graph: tf.Graph) -> Iterator[MatchResult]:
        """Yields the match of each op in a graph that has one."""
        yield from self.match_ops(graph.get_operations())
