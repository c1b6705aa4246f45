"""Calls the user's input_fn and model_fn with the arguments that they take, and explains their errors."""

import contextlib
import copy
import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.imports import keras_2_is_asked_for
from tfx_tpu_trainer.estimator import _estimator_spec
from tfx_tpu_trainer.estimator._engine.source_lines import (
    mappings_looked_up_in,
    source_line_of_error,
)
from tfx_tpu_trainer.estimator._keras_in_model_fn import keras_optimizers_train
from tfx_tpu_trainer.estimator._modes import ModeKeys

v1 = tf.compat.v1
_logger = tf.get_logger()

BATCH_SIZE_NAMES = {
    ModeKeys.TRAIN: "train_batch_size",
    ModeKeys.EVAL: "eval_batch_size",
    ModeKeys.PREDICT: "predict_batch_size",
}
"""Mode -> the argument of TPUEstimator that is its batch size."""

# TensorFlow's errors for a tensor or dataset of another graph, or of eager execution.
_EAGER = "Attempting to capture an EagerTensor without building a function"
_SAYS_SO = re.compile(
    rf"{_EAGER}|Encountered an Eager-defined Tensor during graph construction|must be from the same "
    "graph as|The graph .* of the iterator is different from the graph"
)
_ADDRESSES = re.compile(r" \(graphs are .*\)|(?<=raph) <tensorflow\S+ object at \w+>")
_RULES = {
    # The original's sentence.
    "input_fn": "If you are using the Estimator API, make sure that no part of the dataset returned by the `input_fn` "
    "function is defined outside the `input_fn` function",
    "model_fn": "Make sure that all tensors and datasets that model_fn and input_fn use are made in these functions: "
    "an estimator calls them in a new graph",
}

MODEL_FN_ARGUMENTS = ("features", "labels", "mode", "params", "config", "self")
_Parameter = inspect.Parameter
_VARIABLE = (_Parameter.VAR_POSITIONAL, _Parameter.VAR_KEYWORD)


def argument_names(function: Any) -> tuple[str, ...]:
    """Returns the names of the arguments that a caller can give.

    Args:
        function: A function, bound method, callable object or `functools.partial`. Arguments
            that a partial has bound and `self` of a bound method do not count. Those of a
            decorated function count if its decorator takes `*args` or `**kwargs` and names the
            function, as `functools.wraps` does.

    Returns:
        The names, without `*args` and `**kwargs`.

    Raises:
        TypeError: If `function` is not callable.
    """
    return tuple(each.name for each in _parameters(function) if each.kind not in _VARIABLE)


def positional_names(function: Any) -> tuple[str, ...]:
    """Returns the names of the arguments that a caller can give by position."""
    return tuple(
        each.name
        for each in _parameters(function)
        if each.kind not in (*_VARIABLE, _Parameter.KEYWORD_ONLY)
    )


def unexpected_arguments(function: Any, known: Collection[str]) -> list[str]:
    """Returns the sorted names of the arguments that are not known, without optional keyword-only ones."""
    return sorted(
        each.name
        for each in _parameters(function)
        if each.kind not in _VARIABLE
        and each.name not in known
        and (each.kind is not _Parameter.KEYWORD_ONLY or each.default is _Parameter.empty)
    )


def takes_varargs(function: Callable[..., Any]) -> bool:
    """Returns whether a function takes any number of positional arguments."""
    return _Parameter.VAR_POSITIONAL in _kinds(function)


def takes(function: Callable[..., Any], name: str) -> bool:
    """Returns whether a function takes an argument by name or in `**kwargs`."""
    return name in argument_names(function) or _Parameter.VAR_KEYWORD in _kinds(function)


def call_with(
    function: Callable[..., Any], available: Mapping[str, Any], *, required: Iterable[str] = ()
) -> Any:
    """Calls a function with the available arguments that it takes."""
    parameters = [each for each in _parameters(function) if each.kind not in _VARIABLE]
    names = {each.name for each in parameters}
    keywords = {name: value for name, value in available.items() if name in names}
    # model_fn(features, **kwargs) gets everything, since it must take labels somehow. A function
    # that names all required arguments gets no others, since its `**kwargs` may go to a function
    # without them.
    if _Parameter.VAR_KEYWORD in _kinds(function) and not names.issuperset(required):
        keywords = dict(available)
    positional = [
        index
        for index, each in enumerate(parameters)
        if each.kind is _Parameter.POSITIONAL_ONLY and each.name in keywords
    ]
    # A positional-only argument needs all those before it, with their defaults if nothing is given.
    leading = parameters[: positional[-1] + 1] if positional else []
    arguments = [keywords.pop(each.name, each.default) for each in leading]
    return function(*arguments, **keywords)


def check_model_fn(model_fn: Callable[..., Any] | None, params: Mapping[str, Any] | None) -> None:
    """Checks a model_fn's arguments."""
    if model_fn is None or not callable(model_fn):
        raise TypeError(f"model_fn must be callable, given: {model_fn!r}.")
    names = argument_names(model_fn)
    if not takes(model_fn, "features"):
        raise ValueError(
            f"model_fn ({model_fn!r}) must include features argument. It takes {list(names)}."
        )
    if params is not None and not takes(model_fn, "params"):
        raise ValueError(
            f"model_fn ({model_fn!r}) does not include params argument, but params "
            f"({params}) is passed to Estimator. Add a params argument to it."
        )
    unexpected = unexpected_arguments(model_fn, MODEL_FN_ARGUMENTS)
    if unexpected:
        raise ValueError(
            f"model_fn ({model_fn!r}) has following not expected args: {unexpected}. It can take "
            f"{list(MODEL_FN_ARGUMENTS[:-1])}; bind others with functools.partial, or pass "
            "them in params."
        )


def check_input_fn(input_fn: Any) -> None:
    """Checks that an input_fn is a function."""
    if not callable(input_fn):
        raise TypeError(f"`input_fn` must be callable, given: {input_fn!r}.")


def as_params(params: Any) -> dict[str, Any]:
    """Copies params into a dict; `None` becomes an empty one."""
    try:
        return dict(params or {})
    except (TypeError, ValueError):
        raise TypeError(f"params must be a dict of name -> value, given: {params!r}.") from None


def _kinds(function: Any) -> set[Any]:
    return {each.kind for each in _parameters(function)}


def _parameters(function: Any) -> list[_Parameter]:
    """Returns the parameters of a function, in the order in which it takes them."""
    if not callable(function):
        raise TypeError(f"{function!r} is not callable.")
    own: list[_Parameter] = []
    # A decorator's own arguments count, and if it takes any others, those of what it decorates.
    for follow in (False, True):
        try:
            own = list(inspect.signature(function, follow_wrapped=follow).parameters.values())
        except ValueError:
            # A function in C may have no signature; it may also decorate a function that has one.
            own = [_Parameter("args", _VARIABLE[0]), _Parameter("kwargs", _VARIABLE[1])]
        if not any(each.kind in _VARIABLE for each in own):
            break
    # inspect.signature lists arguments that a partial binds by keyword, with their values as defaults.
    bound = function.keywords if isinstance(function, functools.partial) else ()
    return [each for each in own if each.name not in bound or each.kind in _VARIABLE]


def call_input_fn(
    input_fn: Callable[..., Any],
    *,
    mode: str,
    params: Mapping[str, Any],
    config: Any,
    input_context: tf.distribute.InputContext | None = None,
    required: Iterable[str] = (),
) -> Any:
    """Calls an input_fn with the arguments that it takes, on the host's CPU.

    Args:
        input_fn: The function; may take `mode`, `params`, `config` and `input_context`.
        mode: One of `ModeKeys`.
        params: Given as a deep copy, so changes have no effect.
        config: Given as a deep copy.
        input_context: The share of the input of a `tf.distribute` worker. Defaults to `None`: not
            given to input_fn.
        required: Names of arguments that input_fn must take, by name or in `**kwargs`. Defaults to
            none.

    Returns:
        The result of input_fn.

    Raises:
        TypeError: If input_fn yields, or returns a function.
        ValueError: If it returns a Dataset that was made outside it.
        UnknownKeyError: If it looks up a param that does not exist.
        Keras2NeededError: If it needs Keras 2, and TensorFlow has Keras 3.
    """
    available = {"mode": mode, "params": params, "config": config}
    if input_context is not None:
        available["input_context"] = input_context
    with (
        v1.device("/device:CPU:0"),
        _explained_keys("input_fn", mode, {"params": params}),
        in_one_graph("input_fn"),
        keras_2_is_asked_for("input_fn"),
    ):
        returned = call_with(input_fn, _copied(available), required=required)
    _check_is_no_function(input_fn, returned)
    check_dataset_is_inside(returned)
    return returned


def _check_is_no_function(input_fn: Callable[..., Any], returned: Any) -> None:
    """Rejects generators and functions, which TensorFlow's error would not relate to input_fn."""
    if inspect.isgenerator(returned):
        raise TypeError(
            f"input_fn should return a Dataset or (features, labels), but {input_fn!r} yields: let "
            "it return tf.data.Dataset.from_generator(...) of the function that yields."
        )
    if inspect.isroutine(returned) or isinstance(returned, functools.partial):
        raise TypeError(
            f"input_fn should return a Dataset or (features, labels), but {input_fn!r} returns the "
            f"function {returned!r}: give that one as input_fn, or let input_fn return what it returns."
        )


def call_model_fn(
    model_fn: Callable[..., Any],
    *,
    features: Any,
    labels: Any,
    mode: str,
    params: Mapping[str, Any],
    config: Any,
) -> Any:
    """Calls a model_fn with the arguments that it takes."""
    if labels is not None and not takes(model_fn, "labels"):
        raise ValueError(
            "model_fn does not take labels, but input_fn returns labels. Add a labels argument to "
            f"{model_fn!r}, or let input_fn return features only."
        )
    given = {"features": features, "labels": labels, "params": params}
    available = {**given, "mode": mode, "config": config}
    required = [
        "features",
        *(["labels"] if labels is not None else []),
        *(["params"] if params else []),
    ]
    _logger.info("Calling model_fn.")
    with (
        _explained_keys("model_fn", mode, given),
        in_one_graph("model_fn"),
        keras_2_is_asked_for("model_fn"),
        keras_optimizers_train(),
    ):
        spec = call_with(model_fn, _copied(available), required=required)
    _logger.info("Done calling model_fn.")
    if isinstance(spec, type) or not hasattr(spec, "as_template"):
        advice = "an EstimatorSpec or TPUEstimatorSpec of tfx_tpu_trainer.estimator is one."
        if isinstance(spec, type):
            advice = "make one by calling the class, with the mode and what it needs."
        raise _estimator_spec.NoSpecError(
            f"model_fn should return an EstimatorSpec. Got {spec!r} from {model_fn!r}; {advice}",
            returned=spec,
        )
    return spec


class UnknownKeyError(KeyError):
    """A user's function looked up a key that its argument lacks."""

    def __str__(self) -> str:
        """Returns the message without the quotes of a KeyError."""
        return str(self.args[0])


@contextlib.contextmanager
def _explained_keys(function: str, mode: str, given: Mapping[str, Any]) -> Iterator[None]:
    """Adds the existing keys to the error for a key that a function's arguments lack."""
    try:
        yield
    except KeyError as error:
        explained = _with_keys_there(error, function, mode, given)
        if explained is None:
            raise
        raise explained from error


def _with_keys_there(
    error: KeyError, function: str, mode: str, given: Mapping[str, Any]
) -> KeyError | None:
    """Returns the error with the existing keys; `None` if another mapping lacks the key."""
    key = error.args[0] if len(error.args) == 1 else None
    keys = {
        name: sorted(map(str, part)) for name, part in given.items() if isinstance(part, Mapping)
    }
    # A KeyError does not name the mapping that lacks the key. So the mappings in which the user's line looks it up are
    # compared with the arguments by their keys, since the function may have made a copy.
    looked_in = [
        name
        for mapping in mappings_looked_up_in(error, key)
        for name, part in keys.items()
        if sorted(map(str, mapping)) == part
    ]
    if not looked_in:
        return None
    advice = "The input_fn returns another structure than the model expects."
    if looked_in[0] == "params":
        advice = _advice_on_params(key, mode, is_of_tpu_estimator="use_tpu" in given["params"])
    there = "; ".join(f"{name} has {part}" for name, part in keys.items())
    return UnknownKeyError(f"{function} looked up {key!r}, which does not exist: {there}. {advice}")


def _advice_on_params(key: Any, mode: str, *, is_of_tpu_estimator: bool) -> str:
    if key != "batch_size" or not is_of_tpu_estimator:
        return "Give it in the params of the estimator."
    advice = f"TPUEstimator({BATCH_SIZE_NAMES[mode]}=...) adds it to params"
    if mode != ModeKeys.PREDICT:
        return f"{advice}."
    return (
        f"{advice}, but not for an export, whose batches have any size: use tf.shape(x)[0] there."
    )


def _copied(available: Mapping[str, Any]) -> dict[str, Any]:
    """Copies params and config, so a function's changes have no effect."""
    return {
        name: copy.deepcopy(value) if name in ("params", "config") else value
        for name, value in available.items()
    }


@contextlib.contextmanager
def in_one_graph(function: str) -> Iterator[None]:
    """Adds the rule and the source line to TensorFlow's error about a tensor or dataset of another graph."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        said = str(error)
        is_explained = any(rule in said for rule in _RULES.values())
        if (
            type(error) not in (RuntimeError, ValueError)
            or is_explained
            or not _SAYS_SO.search(said)
        ):
            raise
        line = source_line_of_error(error)
        at = f" ({line})" if line else ""
        words = _ADDRESSES.sub("", said).rstrip(".")
        raise type(error)(f"{words}. {_RULES[function]}{at}.") from error


def check_dataset_is_inside(returned: Any) -> None:
    """Checks that a Dataset from input_fn can be read where input_fn was called."""
    if isinstance(returned, tf.data.Dataset) and not _is_here(
        variant := tf.data.experimental.to_variant(returned)
    ):
        raise ValueError(
            f"The graph of the iterator is different from the graph the dataset {returned} was created in: it was "
            f"made {_where(variant)}. {_RULES['input_fn']}."
        )


def check_tensors_are_inside(*structures: Any) -> None:
    """Checks that tensors from input_fn belong to the graph under construction."""
    for tensor in tf.nest.flatten(structures, expand_composites=True):
        if isinstance(tensor, tf.Tensor) and not _is_here(tensor):
            is_eager = not tf.is_symbolic_tensor(tensor)
            said = _EAGER if is_eager else f"{tensor} must be from the same graph as the model"
            raise (RuntimeError if is_eager else ValueError)(
                f"{said}: input_fn returned a tensor that was made {_where(tensor)}. {_RULES['model_fn']}."
            )


def _is_here(tensor: tf.Tensor) -> bool:
    if tf.executing_eagerly():
        return not tf.is_symbolic_tensor(tensor)
    graph = v1.get_default_graph()
    # In a function's graph (a trace, an export) a tensor from outside is captured.
    return graph.building_function or (tf.is_symbolic_tensor(tensor) and tensor.graph is graph)


def _where(tensor: tf.Tensor) -> str:
    return "in another graph" if tf.is_symbolic_tensor(tensor) else "eagerly, in no graph"
