"""Which params a model reads: one that a search space sets and nothing reads is a slip of the pen."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tfx_tpu_trainer.components.trainer.values import suggest

_ABSENT = object()


class UnreadParamError(ValueError):
    """A search space sets a param that the model never reads."""


class ParamReads:
    """Watches a user's functions read their `params`.

    Attributes:
        seen: The names that were read so far.
    """

    def __init__(self) -> None:
        """Has seen nothing yet."""
        self.seen: set[str] = set()

    def watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a model_fn or an input_fn."""

        @functools.wraps(function)
        def watched(*args: Any, **given: Any) -> Any:
            if isinstance(given.get("params"), Mapping):
                given["params"] = _WatchedParams(given["params"], self.seen)
            return function(*args, **given)

        return watched

    def unread(self, names: Iterable[str]) -> list[str]:
        """Returns those of some names that nothing has read, sorted."""
        return sorted(set(names) - self.seen)


def explain_unread(unread: Iterable[str], seen: Iterable[str], *, of_search: Iterable[str]) -> str:
    """Says which key of a search space nothing reads."""
    first, *others = sorted(unread)
    more = f" (nor {', '.join(map(repr, others))})" if others else ""
    candidates = sorted(set(seen) - set(of_search) - {"batch_size", "use_tpu", "context"})
    return (
        f"search_space sets {first!r}, which model_fn never reads{more}: it would make no "
        "difference to any trial; use the name that model_fn reads from params, or leave it out; "
        f"{suggest(first, candidates)}"
    )


class _WatchedParams(dict[str, Any]):
    """A dict that notes which of its keys are read.

    Whoever copies it, or goes through its items, has read all of them.
    """

    def __init__(self, values: Mapping[str, Any], seen: set[str]) -> None:
        super().__init__(values)
        self._seen = seen

    def __getitem__(self, key: str) -> Any:
        self._seen.add(key)
        return super().__getitem__(key)

    # As long as a subclass has no __iter__ of its own, `**params` and dict(params) go around its __getitem__.
    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    def get(self, key: str, default: Any = None) -> Any:
        """Reads one."""
        self._seen.add(key)
        return super().get(key, default)

    def pop(self, key: str, default: Any = _ABSENT) -> Any:
        """Reads one, and takes it away."""
        self._seen.add(key)
        return super().pop(key) if default is _ABSENT else super().pop(key, default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Reads one, or sets it."""
        self._seen.add(key)
        return super().setdefault(key, default)

    def items(self) -> Any:
        """Reads all."""
        self._seen.update(self.keys())
        return super().items()

    def values(self) -> Any:
        """Reads all."""
        self._seen.update(self.keys())
        return super().values()

    def copy(self) -> dict[str, Any]:
        """Reads all."""
        return dict(self.items())

    def __copy__(self) -> dict[str, Any]:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return copy.deepcopy(self.copy(), memo)

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __ror__(self, other: Any) -> Any:
        return other | self.copy()
