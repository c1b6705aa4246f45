"""Variables set from a checkpoint, or from values, when a session runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1
_logger = tf.get_logger()


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
