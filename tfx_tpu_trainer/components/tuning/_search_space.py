"""Defines the search space, the params of a trial, and the check that the model reads all of them.

A param that the model never reads is a typing error: all its values would give the same result.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras_tuner

from tfx_tpu_trainer.components.trainer.settings import RESERVED_PARAMS
from tfx_tpu_trainer.components.trainer.values import json_problem, shown, suggest

Declare = Callable[[keras_tuner.HyperParameters], Mapping[str, Any] | None]
"""Declares hyperparameters; returns the params if they are not the values themselves."""

_ABSENT = object()

OF_THE_ORACLE = "tuner/"
"""Prefix of the names that Hyperband adds to a trial's values for the tuner."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchSpace:
    # All hyperparameters, with their default values.
    hyperparameters: keras_tuner.HyperParameters
    # Declares them and makes params from their values; `None` uses the values as params.
    declare: Declare | None = None

    @classmethod
    def of(cls, given: keras_tuner.HyperParameters | Declare) -> SearchSpace:
        """Reads a user's search space, and tries to make params from its defaults."""
        if isinstance(given, keras_tuner.HyperParameters):
            space = cls(hyperparameters=given.copy())
        elif callable(given):
            declared = keras_tuner.HyperParameters()
            _declared_by(given, declared)
            space = cls(hyperparameters=declared, declare=given)
        else:
            raise ValueError(
                f"search_space={shown(given)} is not a search space; give "
                "keras_tuner.HyperParameters, or a function that declares them: def "
                "search_space(hp): hp.Float('learning_rate', 1e-4, 1e-1, sampling='log')"
            )
        if not space.hyperparameters.space:
            raise ValueError(
                "search_space declares nothing to search; declare at least one hyperparameter, such as "
                "hp.Float('learning_rate', 1e-4, 1e-1, sampling='log')"
            )
        for name in (one.name for one in space.hyperparameters.space):
            if name.startswith(OF_THE_ORACLE):
                raise ValueError(
                    f"search_space has the hyperparameter {name!r}; give another name: {OF_THE_ORACLE}... are "
                    "Hyperband's"
                )
        _check(space.default_params)
        return space

    @property
    def default_params(self) -> dict[str, Any]:
        """The params of the default values."""
        return self.params_of(self.hyperparameters)

    def params_of(self, hyperparameters: keras_tuner.HyperParameters) -> dict[str, Any]:
        """Returns a trial's params for model_fn."""
        if self.declare is not None:
            params = _declared_by(self.declare, hyperparameters.copy())
            if params is not None:
                return params
        return dict(self.shown_values_of(hyperparameters))

    def shown_values_of(self, hyperparameters: keras_tuner.HyperParameters) -> Mapping[str, Any]:
        """Returns a trial's values without those added by the oracle."""
        values = hyperparameters.values.items()
        return {name: value for name, value in values if not name.startswith(OF_THE_ORACLE)}

    def variations(self) -> Iterator[dict[str, Any]]:
        """Yields spaces with one choice other than the default, on which some params depend."""
        for one in self.hyperparameters.space:
            if isinstance(one, keras_tuner.engine.hyperparameters.Boolean):
                others = [not one.default]
            else:
                choices = getattr(one, "values", ())
                others = [value for value in choices if value != one.default]
            for value in others:
                varied = self.hyperparameters.copy()
                if not varied.is_active(one.name):
                    continue
                varied.values[one.name] = value
                varied.ensure_active_values()
                yield self.params_of(varied)


def _declared_by(
    declare: Declare, hyperparameters: keras_tuner.HyperParameters
) -> dict[str, Any] | None:
    try:
        params = declare(hyperparameters)
    except Exception as error:
        raise ValueError(
            f"search_space fails with the values {shown(hyperparameters.values)}: {type(error).__name__}: "
            f"{' '.join(str(error).split())}"
        ) from error
    if params is None:
        return None
    if not isinstance(params, Mapping):
        raise ValueError(
            f"search_space returned {shown(params)}; let it return a dict of params, or nothing if "
            "the values are the params"
        )
    return dict(params)


def _check(params: Mapping[str, Any]) -> None:
    for name, value in params.items():
        if not isinstance(name, str):
            raise ValueError(f"search_space returns the param {shown(name)}; give strings as keys")
        if name in RESERVED_PARAMS:
            raise ValueError(
                f"search_space has {name!r}, which the engine sets itself; rename it, or give train_batch_size to the "
                "Tuner and to the trainer"
            )
        if problem := json_problem(value):
            raise ValueError(
                f"search_space returns {name!r}={shown(value)}, which {problem}: TpuTrainer could "
                "not read it from best_hyperparameters; give numbers, strings, or lists of them"
            )


class UnusedParamError(ValueError):
    """A search space sets a param that the model never reads."""


class ParamReads:
    """Records which `params` a user's functions read."""

    def __init__(self) -> None:
        # The names read so far.
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
        """Returns the names that nothing has read, sorted."""
        return sorted(set(names) - self.seen)

    def check(self, names: Iterable[str]) -> None:
        """Raises `UnusedParamError` if a param of the search was never read."""
        names = set(names)
        if not (unread := self.unread(names)):
            return
        first, *others = unread
        more = f" (nor {', '.join(map(repr, others))})" if others else ""
        candidates = sorted(self.seen - names - {"batch_size", "use_tpu", "context"})
        raise UnusedParamError(
            f"search_space sets {first!r}, which the model never reads{more}: it would make no "
            "difference to any trial; use the name that it reads from params, or leave it out; "
            f"{suggest(first, candidates)}"
        )


class _WatchedParams(dict[str, Any]):
    """A dict that records which keys are read.

    Copying it, or iterating over its items, counts as reading all of them.
    """

    def __init__(self, values: Mapping[str, Any], seen: set[str]) -> None:
        super().__init__(values)
        self._seen = seen

    def __getitem__(self, key: str) -> Any:
        self._seen.add(key)
        return super().__getitem__(key)

    # A subclass without its own __iter__ would let `**params` and dict(params) bypass its __getitem__.
    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    def get(self, key: str, default: Any = None) -> Any:
        self._seen.add(key)
        return super().get(key, default)

    def pop(self, key: str, default: Any = _ABSENT) -> Any:
        self._seen.add(key)
        return super().pop(key) if default is _ABSENT else super().pop(key, default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        self._seen.add(key)
        return super().setdefault(key, default)

    def items(self) -> Any:
        self._seen.update(self.keys())
        return super().items()

    def values(self) -> Any:
        self._seen.update(self.keys())
        return super().values()

    def copy(self) -> dict[str, Any]:
        return dict(self.items())

    def __copy__(self) -> dict[str, Any]:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return copy.deepcopy(self.copy(), memo)

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __ror__(self, other: Any) -> Any:
        return other | self.copy()
