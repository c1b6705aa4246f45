"""Variables set from a checkpoint, or from values, when a session runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
_logger = tf.get_logger()
Assignment = tuple[Any, dict[Any, np.ndarray]]


def assign_from_values(var_names_to_values: Mapping[str, np.ndarray]) -> Assignment:
    """Makes an op that sets variables.

    Args:
        var_names_to_values: Name -> value, of as many numbers as the variable has.

    Returns:
        The op, and the values to feed when it runs.

    Raises:
        ValueError: If the variable does not exist.
    """
    by_name = {each.op.name: each for each in v1.global_variables()}
    missing = sorted(set(var_names_to_values) - set(by_name))
    if missing:
        raise ValueError(f"Variable {missing[0]} wasn't found.")
    return _assigned((by_name[name], value) for name, value in var_names_to_values.items())


def assign_from_values_fn(
    var_names_to_values: Mapping[str, np.ndarray],
) -> Callable[[v1.Session], Any]:
    """Makes a function of a session that sets variables.

    Args:
        var_names_to_values: As for `assign_from_values`.

    Returns:
        The function.
    """
    op, feed = assign_from_values(var_names_to_values)
    return lambda session: session.run(op, feed)


def assign_from_checkpoint(
    model_path: str, var_list: Any, ignore_missing_vars: bool = False
) -> Assignment:
    """Makes an op that sets variables to a checkpoint's values.

    Args:
        model_path: The checkpoint.
        var_list: Variables, or name in the checkpoint -> variable, or several.
        ignore_missing_vars: Whether to skip variables that the checkpoint lacks, with a warning. Defaults to `False`,
            an error.

    Returns:
        The op, and the values to feed when it runs.

    Raises:
        ValueError: If the checkpoint lacks a variable, or a shape is another.
    """
    reader = tf.train.load_checkpoint(model_path)
    pairs = []
    for name, variables in _by_name(var_list).items():
        if not reader.has_tensor(name):
            if not ignore_missing_vars:
                raise ValueError(f"Checkpoint is missing variable [{name}]")
            _logger.warning("Checkpoint is missing variable [%s]", name)
            continue
        value = reader.get_tensor(name)
        for variable in variables:
            if list(variable.shape) != list(value.shape):
                raise ValueError(
                    f"{name} has the shape {list(value.shape)} in the checkpoint, and {list(variable.shape)} in "
                    "the model."
                )
            pairs.append((variable, value))
    return _assigned(pairs)


def _by_name(var_list: Any) -> dict[str, Sequence[tf.Variable]]:
    if isinstance(var_list, Mapping):
        return {
            name: each if isinstance(each, (list, tuple)) else [each]
            for name, each in var_list.items()
        }
    found: dict[str, list[tf.Variable]] = {}
    for each in var_list:
        found.setdefault(each.op.name, []).append(each)
    return dict(found)


def _assigned(pairs: Iterable[tuple[tf.Variable, np.ndarray]]) -> Assignment:
    ops, feed = [], {}
    for variable, value in pairs:
        name = f"placeholder/{variable.op.name}"
        given = v1.placeholder(variable.dtype.base_dtype, variable.shape, name=name)
        ops.append(variable.assign(given).op)
        feed[given] = np.reshape(value, variable.shape.as_list())
    return tf.group(*ops), feed


def assign_from_checkpoint_fn(
    model_path: str,
    var_list: Any,
    ignore_missing_vars: bool = False,
    reshape_variables: bool = False,
) -> Callable[[v1.Session], None] | None:
    """Makes a function of a session that sets variables to a checkpoint's values.

    Args:
        model_path: The checkpoint.
        var_list: Variables, or name in the checkpoint -> variable.
        ignore_missing_vars: Whether to skip variables that the checkpoint lacks, with a warning. Defaults to `False`.
        reshape_variables: Whether shapes may differ. Defaults to `False`.

    Returns:
        The function; `None` where there is nothing to set.

    Raises:
        ValueError: If no variables are given.
    """
    if not var_list:
        raise ValueError("assign_from_checkpoint_fn takes at least one variable; got none.")
    named = (
        dict(var_list)
        if isinstance(var_list, Mapping)
        else {each.op.name: each for each in var_list}
    )
    if ignore_missing_vars:
        reader = tf.train.load_checkpoint(model_path)
        for name in [each for each in named if not reader.has_tensor(each)]:
            _logger.warning("Variable %s missing in checkpoint %s", name, model_path)
            del named[name]
        if not named:
            _logger.warning("No Variables to restore")
            return None
    saver = v1.train.Saver(named, reshape=reshape_variables)
    return lambda session: saver.restore(session, model_path)


def filter_variables(
    var_list: Iterable[tf.Variable],
    include_patterns: Sequence[str] | None = None,
    exclude_patterns: Sequence[str] | None = None,
    reg_search: bool = True,
) -> list[tf.Variable]:
    """Picks variables by their names.

    Args:
        var_list: The variables.
        include_patterns: Regular expressions of which a name matches one. Defaults to `None`, all.
        exclude_patterns: Regular expressions of which it matches none. Defaults to `None`.
        reg_search: Whether anywhere in the name; else from its beginning. Defaults to `True`.

    Returns:
        The variables.
    """
    matches = re.search if reg_search else re.match

    def is_in(variable: tf.Variable, patterns: Sequence[str]) -> bool:
        return any(matches(each, variable.name) for each in patterns)

    return [
        each
        for each in var_list
        if (include_patterns is None or is_in(each, include_patterns))
        and not is_in(each, exclude_patterns or ())
    ]
