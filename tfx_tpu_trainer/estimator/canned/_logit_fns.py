"""Functions that make logits, for model_fns of one's own; of `tf.compat.v1.estimator.experimental`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._callables import call_with
from tfx_tpu_trainer.estimator.canned._dnn import Deep, v1_dnn_logits
from tfx_tpu_trainer.estimator.canned._linear import Linear, summarize_weights


def linear_logit_fn_builder(
    units: int, feature_columns: Iterable[Any], sparse_combiner: str = "sum"
) -> Callable[[Any], tf.Tensor]:
    """Returns the function from features to the logits of a linear model.

    Args:
        units: Length of a row of logits.
        feature_columns: Feature columns.
        sparse_combiner: `"mean"`, `"sqrtn"` or `"sum"`, the default.
    """
    linear = Linear(tuple(feature_columns), None, sparse_combiner)

    def linear_logit_fn(features: Any) -> tf.Tensor:
        logits, variables = linear.logits(features, units)
        summarize_weights(variables, units)
        return logits

    return linear_logit_fn


def dnn_logit_fn_builder(
    units: int,
    hidden_units: Sequence[int],
    feature_columns: Iterable[Any],
    activation_fn: Any,
    dropout: float | None,
    input_layer_partitioner: Callable[..., Any] | None,
    batch_norm: bool,
) -> Callable[[Any, str], tf.Tensor]:
    """Returns the function from features and mode to the logits of a deep model.

    Args:
        units: Length of a row of logits.
        hidden_units: Width of each hidden layer.
        feature_columns: Dense feature columns.
        activation_fn: Activation of the hidden layers.
        dropout: Share of the values that training drops, or `None`.
        input_layer_partitioner: Partitioner of the columns' variables, or `None`.
        batch_norm: Whether each hidden layer's output is normalized.

    Raises:
        ValueError: If `units` is not an int.
    """
    if isinstance(units, bool) or not isinstance(units, int):
        raise ValueError(f"units must be an int.  Given type: {type(units)}, value: {units!r}")
    columns = tuple(feature_columns)
    deep = Deep(columns, None, hidden_units, activation_fn, dropout, batch_norm)
    checked = deep.with_checked_layers()

    def dnn_logit_fn(features: Any, mode: str) -> tf.Tensor:
        return v1_dnn_logits(features, mode, checked, units, input_layer_partitioner)

    return dnn_logit_fn


def call_logit_fn(
    logit_fn: Callable[..., Any],
    features: Any,
    mode: str,
    params: Mapping[str, Any] | None,
    config: Any,
) -> Any:
    """Calls a function that makes logits with those arguments that it takes.

    Mirrors `tf.estimator.experimental.call_logit_fn`.

    Args:
        logit_fn: Takes `features`; may take `mode`, `params` and `config`.
        features: What input_fn returns.
        mode: One of `ModeKeys`.
        params: Parameters, or `None`.
        config: The run's configuration.

    Returns:
        A tensor of logits, or a dict of them.

    Raises:
        ValueError: If it returns something else.
    """
    available = {"features": features, "mode": mode, "params": params, "config": config}
    logits = call_with(logit_fn, available, required=("features",))
    by_name = isinstance(logits, dict) and all(
        isinstance(name, str) and isinstance(value, tf.Tensor) for name, value in logits.items()
    )
    if not (by_name or isinstance(logits, tf.Tensor)):
        raise ValueError(
            "logit_fn should return a Tensor or a dictionary mapping strings to Tensors.  logit_fn "
            f"returned: {logits}, of {logit_fn!r}."
        )
    return logits
