"""Provides the functions of `tf.contrib.graph_editor` that programs use: walks, selections, rerouting."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

_Within = Callable[[tf.Operation], bool]

__all__ = [
    "add_control_inputs",
    "filter_ts",
    "filter_ts_from_regex",
    "get_backward_walk_ops",
    "get_forward_walk_ops",
    "reroute_ts",
    "select_ops",
]


def _flat(values: Any) -> Iterator[Any]:
    if isinstance(values, tf.Graph):
        yield from values.get_operations()
    elif isinstance(values, Iterable) and not tf.is_tensor(values):
        for each in values:
            yield from _flat(each)
    elif values is not None:
        yield values


def _ops(values: Any) -> list[tf.Operation]:
    found = list(_flat(values))
    wrong = next((each for each in found if not isinstance(each, tf.Operation)), None)
    if wrong is not None:
        raise TypeError(f"Give a tf.Operation or a list of them; got {wrong!r}.")
    return found


def _walk(
    seeds: Iterable[tf.Operation],
    inclusive: bool,
    within_ops: Any,
    within_ops_fn: _Within | None,
    next_ops: Callable[[tf.Operation], Iterable[tf.Operation]],
) -> list[tf.Operation]:
    among = None if within_ops is None else set(_ops(within_ops))

    def is_within(op: tf.Operation) -> bool:
        return (among is None or op in among) and (within_ops_fn is None or within_ops_fn(op))

    # A dict keeps the order, so walks are reproducible.
    first = dict.fromkeys(each for each in seeds if is_within(each))
    seen, wave = dict(first), list(first)
    while wave:
        above = dict.fromkeys(each for op in wave for each in next_ops(op))
        wave = [each for each in above if each not in seen and is_within(each)]
        seen.update(dict.fromkeys(wave))
    return [each for each in seen if inclusive or each not in first]


def get_backward_walk_ops(
    seed_ops: Any,
    inclusive: bool = True,
    within_ops: Any = None,
    within_ops_fn: _Within | None = None,
    stop_at_ts: Any = (),
    control_inputs: bool = False,
) -> list[tf.Operation]:
    """Returns the ops upstream of others."""
    stops = {each.ref() for each in _flat(stop_at_ts)}

    def behind(op: tf.Operation) -> list[tf.Operation]:
        found = [each.op for each in op.inputs if each.ref() not in stops]
        return found + (list(op.control_inputs) if control_inputs else [])

    seeds = _ops([each.op if tf.is_tensor(each) else each for each in _flat(seed_ops)])
    return _walk(seeds, inclusive, within_ops, within_ops_fn, behind)


def get_forward_walk_ops(
    seed_ops: Any,
    inclusive: bool = True,
    within_ops: Any = None,
    within_ops_fn: _Within | None = None,
    stop_at_ts: Any = (),
    control_outputs: Any = None,
) -> list[tf.Operation]:
    """Returns the ops downstream of others."""
    stops = {each.ref() for each in _flat(stop_at_ts)}

    def beyond(op: tf.Operation) -> list[tf.Operation]:
        found = [c for each in op.outputs if each.ref() not in stops for c in each.consumers()]
        return found + ([] if control_outputs is None else list(control_outputs.get(op)))

    given = list(_flat(seed_ops))
    seeds = _ops([each.consumers() if tf.is_tensor(each) else each for each in given])
    return _walk(seeds, inclusive, within_ops, within_ops_fn, beyond)


def filter_ts(ops: Any, positive_filter: Callable[[tf.Tensor], bool] | bool) -> list[tf.Tensor]:
    """Returns the inputs and outputs of ops that pass a filter, each once."""
    tensors: dict[Any, tf.Tensor] = {}
    for op in _ops(ops):
        for each in (*op.inputs, *op.outputs):
            if positive_filter is True or positive_filter(each):  # type: ignore[operator]
                tensors.setdefault(each.ref(), each)
    return list(tensors.values())


def filter_ts_from_regex(ops: Any, regex: Any) -> list[tf.Tensor]:
    """Returns the inputs and outputs of ops whose names match a regular expression."""
    expression = re.compile(regex)
    return filter_ts(ops, lambda each: expression.search(each.name) is not None)


def select_ops(*args: Any, **kwargs: Any) -> list[tf.Operation]:
    """Selects ops given directly, in lists, or by regular expressions of their names."""
    graph, wanted = kwargs.pop("graph", None), kwargs.pop("positive_filter", None)
    restricted = kwargs.pop("restrict_ops_regex", False)
    if kwargs:
        raise ValueError(f"select_ops knows no {sorted(kwargs)}; use graph, positive_filter.")
    if graph is not None and not isinstance(graph, tf.Graph):
        raise TypeError(f"graph must be a tf.Graph; got {graph!r}.")
    found: list[tf.Operation] = []
    for each in args:
        if isinstance(each, (str, re.Pattern)):
            if graph is None:
                raise ValueError("An expression needs the graph whose names it is for: graph=...")
            expression = re.compile(each)
            if restricted and not expression.pattern.startswith("(?#ops)"):
                continue
            found += [op for op in graph.get_operations() if expression.search(op.name)]
        else:
            found += _ops([value for value in _flat(each) if not tf.is_tensor(value)])
    return [op for op in dict.fromkeys(found) if wanted is None or wanted(op)]


def reroute_ts(ts0: Any, ts1: Any, can_modify: Any = None, cannot_modify: Any = None) -> int:
    """Replaces tensors by others in the inputs of ops."""
    new, old = list(_flat(ts0)), list(_flat(ts1))
    wrong = next((each for each in new + old if not tf.is_tensor(each)), None)
    if wrong is not None:
        raise TypeError(f"Give a tf.Tensor or a list of them; got {wrong!r}.")
    if len(new) != len(old):
        raise ValueError(f"Each tensor needs a replacement; got {len(new)} for {len(old)}.")
    allowed = None if can_modify is None else set(_ops(can_modify))
    kept = set(_ops(cannot_modify))
    changed = 0
    for to, taken in zip(new, old):
        if to.dtype != taken.dtype:
            raise ValueError(f"{to.name} is {to.dtype.name}; {taken.name}, {taken.dtype.name}.")
        for op in dict.fromkeys(taken.consumers()):
            if op in kept or (allowed is not None and op not in allowed):
                continue
            for index, each in enumerate(op.inputs):
                if each is taken:
                    op._update_input(index, to)
                    changed += 1
    return changed


def add_control_inputs(op: tf.Operation, cops: Any) -> None:
    """Adds control inputs to an op."""
    if not isinstance(op, tf.Operation):
        raise TypeError(f"Give a tf.Operation; got {op!r}.")
    others = _ops(cops)
    twice = next((each for each in others if each in op.control_inputs), None)
    if twice is not None:
        raise ValueError(f"{op.name} waits for {twice.name} already.")
    op._add_control_inputs(others)
