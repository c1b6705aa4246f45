"""Calls the functions that a user gives: input_fn and model_fn."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator.callables import argument_names

v1 = tf.compat.v1


def call_input_fn(
    input_fn: Callable[..., Any],
    *,
    mode: str,
    params: Mapping[str, Any],
    config: Any,
) -> Any:
    """Calls an input_fn with those arguments that it takes, on the host's CPU.

    Args:
        input_fn: The function; may take `mode`, `params` and `config`.
        mode: One of `ModeKeys`.
        params: Given as a deep copy, so that changes go nowhere.
        config: Given as a deep copy.

    Returns:
        What it returns.
    """
    available = {"mode": mode, "params": params, "config": config}
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
    """
    available = {"labels": labels, "mode": mode, "params": params, "config": config}
    if labels is not None and "labels" not in argument_names(model_fn):
        raise ValueError(
            f"model_fn ({model_fn!r}) does not take labels, but input_fn returns labels. Add a "
            "labels argument to it, or let input_fn return features only."
        )
    spec = model_fn(features, **_arguments(model_fn, available))
    if not hasattr(spec, "as_template"):
        raise ValueError(
            "model_fn should return an EstimatorSpec or TPUEstimatorSpec (of "
            f"tfx_tpu_trainer.estimator); got {spec!r} from {model_fn!r}."
        )
    return spec


def _arguments(function: Callable[..., Any], available: Mapping[str, Any]) -> dict[str, Any]:
    taken = {name: available[name] for name in argument_names(function) if name in available}
    for name in ("params", "config"):
        if name in taken:
            taken[name] = copy.deepcopy(taken[name])
    return taken
