"""Calls the functions that a user gives: input_fn and model_fn."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.keras_choice import keras_2_is_asked_for
from tfx_tpu_trainer.estimator import _spec_checks
from tfx_tpu_trainer.estimator._callables import call_with, takes
from tfx_tpu_trainer.estimator._engine.checking.source_lines import mappings_looked_up_in
from tfx_tpu_trainer.estimator._keras_in_model_fn import keras_optimizers_train
from tfx_tpu_trainer.estimator._mode_keys import ModeKeys
from tfx_tpu_trainer.estimator._one_graph import check_dataset_is_inside, in_one_graph

v1 = tf.compat.v1
_logger = tf.get_logger()

_BATCH_SIZES = {
    ModeKeys.TRAIN: "train_batch_size",
    ModeKeys.EVAL: "eval_batch_size",
    ModeKeys.PREDICT: "predict_batch_size",
}


def call_input_fn(
    input_fn: Callable[..., Any],
    *,
    mode: str,
    params: Mapping[str, Any],
    config: Any,
    input_context: tf.distribute.InputContext | None = None,
    required: Iterable[str] = (),
) -> Any:
    """Calls an input_fn with those arguments that it takes, on the host's CPU.

    Args:
        input_fn: The function; may take `mode`, `params`, `config` and `input_context`.
        mode: One of `ModeKeys`.
        params: Given as a deep copy, so that changes go nowhere.
        config: Given as a deep copy.
        input_context: What a worker of a `tf.distribute` strategy knows of its share of the
            input. Defaults to `None`: not given to input_fn.
        required: The names of arguments that it must take, be it in `**kwargs`. Defaults to
            none.

    Returns:
        What it returns.

    Raises:
        TypeError: If it yields, or returns a function.
        ValueError: If it returns a Dataset that was made outside of it.
        UnknownKeyError: If it looks up a param that is not there.
        Keras2NeededError: If it uses what only Keras 2 has, and TensorFlow has Keras 3.
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
    """Refuses what TensorFlow would otherwise try to make a tensor of, without a word of input_fn."""
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
    """Calls a model_fn with those arguments that it takes."""
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
        raise _spec_checks.NoSpecError(
            f"model_fn should return an EstimatorSpec. Got {spec!r} from {model_fn!r}; {advice}",
            returned=spec,
        )
    return spec


class UnknownKeyError(KeyError):
    """A user's function looked up what it was not given."""

    def __str__(self) -> str:
        """The message as it is; a KeyError would quote it."""
        return str(self.args[0])


@contextlib.contextmanager
def _explained_keys(function: str, mode: str, given: Mapping[str, Any]) -> Iterator[None]:
    """Lists the keys that are there, for a key that a function looked up in vain in its arguments."""
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
    """Returns the error with the keys that are there; `None` where something else was looked up."""
    key = error.args[0] if len(error.args) == 1 else None
    keys = {
        name: sorted(map(str, part)) for name, part in given.items() if isinstance(part, Mapping)
    }
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
    advice = f"TPUEstimator({_BATCH_SIZES[mode]}=...) adds it to params"
    if mode != ModeKeys.PREDICT:
        return f"{advice}."
    return (
        f"{advice}, but not for an export, whose batches have any size: use tf.shape(x)[0] there."
    )


def _copied(available: Mapping[str, Any]) -> dict[str, Any]:
    """Copies what a function may change without effect."""
    return {
        name: copy.deepcopy(value) if name in ("params", "config") else value
        for name, value in available.items()
    }
