"""Calls the functions that a user gives: input_fn and model_fn."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator.callables import argument_names

v1 = tf.compat.v1
_logger = tf.get_logger()


def call_input_fn(
    input_fn: Callable[..., Any],
    *,
    mode: str,
    params: Mapping[str, Any],
    config: Any,
    input_context: tf.distribute.InputContext | None = None,
) -> Any:
    """Calls an input_fn with those arguments that it takes, on the host's CPU.

    Args:
        input_fn: The function; may take `mode`, `params`, `config` and `input_context`.
        mode: One of `ModeKeys`.
        params: Given as a deep copy, so that changes go nowhere.
        config: Given as a deep copy.
        input_context: What a worker of a `tf.distribute` strategy knows of its share of the
            input. Defaults to `None`: not given to input_fn.

    Returns:
        What it returns.
    """
    available = {"mode": mode, "params": params, "config": config}
    if input_context is not None:
        available["input_context"] = input_context
    with v1.device("/device:CPU:0"):
        return input_fn(**_arguments(input_fn, available))


def call_model_fn(
    model_fn: Callable[..., Any],
    *,
    features: Any,
    labels: Any,
    mode: str,
    params: Mapping[str, Any],
    config: Any,
) -> Any:
    """Calls a model_fn with those arguments that it takes.

    Args:
        model_fn: The function; takes `features`, may take the others.
        features: Nested structure of tensors.
        labels: Nested structure of tensors, or `None`.
        mode: One of `ModeKeys`.
        params: Given as a deep copy.
        config: Given as a deep copy.

    Returns:
        The spec that it returns.

    Raises:
        ValueError: If there are labels and it takes none, or if it returns no spec.
        UnknownKeyError: If it looks up a key that is not there.
    """
    available = {"labels": labels, "mode": mode, "params": params, "config": config}
    if labels is not None and "labels" not in argument_names(model_fn):
        raise ValueError(
            f"model_fn ({model_fn!r}) does not take labels, but input_fn returns labels. Add a "
            "labels argument to it, or let input_fn return features only."
        )
    _logger.info("Calling model_fn.")
    try:
        spec = model_fn(features, **_arguments(model_fn, available))
    except KeyError as error:
        given = {"features": features, "labels": labels, "params": params}
        explained = _with_keys_there(error, given)
        if explained is None:
            raise
        raise explained from error
    _logger.info("Done calling model_fn.")
    if not hasattr(spec, "as_template"):
        raise ValueError(
            "model_fn should return an EstimatorSpec or TPUEstimatorSpec (of "
            f"tfx_tpu_trainer.estimator); got {spec!r} from {model_fn!r}."
        )
    return spec


class UnknownKeyError(KeyError):
    """A model_fn looked up what its input does not have."""

    def __str__(self) -> str:
        """The message as it is; a KeyError would quote it."""
        return str(self.args[0])


def _with_keys_there(error: KeyError, given: Mapping[str, Any]) -> KeyError | None:
    """Says beside a key what keys there are; `None` where the error is of something else."""
    key = error.args[0] if len(error.args) == 1 else None
    keys = {
        name: sorted(map(str, part)) for name, part in given.items() if isinstance(part, Mapping)
    }
    if key is None or "\n" in str(key) or any(str(key) in part for part in keys.values()):
        return None
    there = "; ".join(f"{name} has {part}" for name, part in keys.items())
    return UnknownKeyError(
        f"model_fn looked up {key!r}, which is not there: {there}. If it is a feature, input_fn "
        "gives another structure than the model was made for."
    )


def _arguments(function: Callable[..., Any], available: Mapping[str, Any]) -> dict[str, Any]:
    taken = {name: available[name] for name in argument_names(function) if name in available}
    for name in ("params", "config"):
        if name in taken:
            taken[name] = copy.deepcopy(taken[name])
    return taken
