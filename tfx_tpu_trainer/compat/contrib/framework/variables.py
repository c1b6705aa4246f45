"""Makes a model's variables, finds them by name, and sets them from a checkpoint.

The semantics are those of `tf.contrib.framework` in TensorFlow 1.15.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.compat.contrib.framework.arg_scope import add_arg_scope

v1 = tf.compat.v1
_Keys = v1.GraphKeys


@add_arg_scope
def variable(
    name: str,
    shape: Any = None,
    dtype: Any = None,
    initializer: Any = None,
    regularizer: Callable[[tf.Tensor], tf.Tensor] | None = None,
    trainable: bool = True,
    collections: Sequence[str] | None = None,
    caching_device: Any = None,
    device: Any = None,
    partitioner: Any = None,
    custom_getter: Any = None,
    use_resource: bool | None = None,
    synchronization: Any = tf.VariableSynchronization.AUTO,
    aggregation: Any = v1.VariableAggregation.NONE,
) -> tf.Variable:
    """Makes a variable, or finds it in a scope with reuse.

    Args:
        name: Its name below the variable scope.
        shape: Its shape. Defaults to `None`, the initial value's.
        dtype: Its type. Defaults to `None`, float32.
        initializer: Its initial value, or a function that makes it. Defaults to `None`, the
            scope's.
        regularizer: Computes a loss from it, which is added to the regularization losses. Defaults to `None`.
        trainable: Whether optimizers update it. Defaults to `True`.
        collections: The collections that it is added to. Defaults to `None`, the global variables.
        caching_device: As for `tf.compat.v1.get_variable`. Defaults to `None`.
        device: Its device, or a function from the op to it. Defaults to `None`, that of the code around the call.
        partitioner: As for `tf.compat.v1.get_variable`. Defaults to `None`.
        custom_getter: Called instead of `tf.compat.v1.get_variable`, with the same arguments. Defaults to `None`.
        use_resource: Whether it is a resource variable. Defaults to `None`, the enclosing scope's setting.
        synchronization: When its copies on several devices are combined. Defaults to `AUTO`.
        aggregation: How they are combined. Defaults to `NONE`.

    Returns:
        The variable.
    """
    given = locals()
    getter = given.pop("custom_getter") or v1.get_variable
    # Each collection once, and at least one collection, or it would not be saved.
    names = collections if collections is not None else [_Keys.GLOBAL_VARIABLES]
    given["collections"] = list(dict.fromkeys(names))
    with tf.device(given.pop("device") or ""):
        return getter(given.pop("name"), **given)


@add_arg_scope
def model_variable(
    name: str,
    shape: Any = None,
    dtype: Any = tf.float32,
    initializer: Any = None,
    regularizer: Callable[[tf.Tensor], tf.Tensor] | None = None,
    trainable: bool = True,
    collections: Sequence[str] | None = None,
    caching_device: Any = None,
    device: Any = None,
    partitioner: Any = None,
    custom_getter: Any = None,
    use_resource: bool | None = None,
    synchronization: Any = tf.VariableSynchronization.AUTO,
    aggregation: Any = v1.VariableAggregation.NONE,
) -> tf.Variable:
    """Makes a variable of the model, which is also in `GraphKeys.MODEL_VARIABLES`.

    The arguments are those of `variable`, but `dtype` defaults to float32, and `collections` are additional ones.

    Returns:
        The variable.
    """
    given = locals()
    given["collections"] = [*(collections or []), _Keys.GLOBAL_VARIABLES, _Keys.MODEL_VARIABLES]
    return variable(**given)


def add_model_variable(var: tf.Variable) -> None:
    """Adds a variable to `GraphKeys.MODEL_VARIABLES`, if it is not there.

    Args:
        var: The variable.
    """
    if not any(each is var for each in v1.get_collection(_Keys.MODEL_VARIABLES)):
        v1.add_to_collection(_Keys.MODEL_VARIABLES, var)


def get_variables(
    scope: Any = None, suffix: str | None = None, collection: str = _Keys.GLOBAL_VARIABLES
) -> list[tf.Variable]:
    """Finds variables by scope and by the end of their names.

    Args:
        scope: A variable scope, or a regular expression for the beginning of the names. Defaults to `None`, all.
        suffix: The end of the names, without `:0`. Defaults to `None`, any.
        collection: The collection to search. Defaults to all variables.

    Returns:
        The variables.
    """
    start = scope.name if isinstance(scope, v1.VariableScope) else scope
    if suffix is not None:
        end = suffix if ":" in suffix else f"{suffix}:"
        start = f"{start or ''}.*{end}"
    return v1.get_collection(collection, start)


def get_model_variables(scope: Any = None, suffix: str | None = None) -> list[tf.Variable]:
    """Finds variables of `GraphKeys.MODEL_VARIABLES`, as `get_variables` does."""
    return get_variables(scope, suffix, _Keys.MODEL_VARIABLES)


def get_trainable_variables(scope: Any = None, suffix: str | None = None) -> list[tf.Variable]:
    """Finds trainable variables, as `get_variables` does."""
    return get_variables(scope, suffix, _Keys.TRAINABLE_VARIABLES)


def get_variables_to_restore(
    include: Sequence[str] | None = None, exclude: Sequence[str] | None = None
) -> list[tf.Variable]:
    """Finds the variables of some scopes, without those of others.

    Args:
        include: The scopes. Defaults to `None`, all variables.
        exclude: The scopes to leave out. Defaults to `None`.

    Returns:
        The variables.

    Raises:
        TypeError: If one of them is not a list or tuple.
    """
    for given in (include, exclude):
        if given is not None and not isinstance(given, (list, tuple)):
            raise TypeError(f"Scopes are given as a list of names; got {given!r}.")
    found = get_variables() if include is None else _of_scopes(include)
    left_out = {id(each) for each in _of_scopes(exclude or ())}
    return [each for each in found if id(each) not in left_out]


def _of_scopes(scopes: Sequence[str]) -> list[tf.Variable]:
    return [each for scope in scopes for each in get_variables(scope)]


_logger = tf.get_logger()


def assign_from_checkpoint_fn(
    model_path: str,
    var_list: Any,
    ignore_missing_vars: bool = False,
    reshape_variables: bool = False,
) -> Callable[[v1.Session], None] | None:
    """Makes a function that takes a session and sets variables to a checkpoint's values.

    Args:
        model_path: The checkpoint.
        var_list: Variables, or name in the checkpoint -> variable.
        ignore_missing_vars: Whether to skip variables that the checkpoint lacks, with a warning. Defaults to `False`.
        reshape_variables: Whether shapes may differ. Defaults to `False`.

    Returns:
        The function; `None` if there is nothing to set.

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
        include_patterns: Regular expressions; a name must match one of them. Defaults to `None`, all.
        exclude_patterns: Regular expressions; a name must match none of them. Defaults to `None`.
        reg_search: Whether to search the whole name; else only its beginning is matched. Defaults to `True`.

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
