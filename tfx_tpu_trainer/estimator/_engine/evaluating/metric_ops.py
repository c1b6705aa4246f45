"""Metrics as pairs of a value and an update op."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1


def value_and_update(name: str, metric: Any) -> tuple[Any, Any]:
    """Returns the value and the update op of a metric.

    Args:
        name: The metric's name, for the error.
        metric: A pair (value, update op), as `tf.compat.v1.metrics` gives, or a Keras 2 metric
            that was updated in this graph. The value may be a nested structure of tensors.

    Returns:
        The pair (value, update op).

    Raises:
        TypeError: If it is neither.
        ValueError: If it is a Keras metric that was not updated.
    """
    if hasattr(metric, "update_state") and hasattr(metric, "result"):
        updates = list(getattr(metric, "updates", None) or ())
        if not updates:
            raise ValueError(
                f'Please call update_state(...) on the "{metric.name}" metric of key {name} before '
                "it is returned: it has no updates in this graph."
            )
        return metric.result(), updates[0] if len(updates) == 1 else tf.group(*updates)
    if isinstance(metric, tuple) and len(metric) == 2:
        return metric[0], metric[1]
    raise TypeError(
        f"Values of eval_metric_ops must be (metric_value, update_op) tuples, given: {metric!r} "
        f"for key: {name}. tf.compat.v1.metrics functions give such a pair."
    )


def checked_pair(name: str, metric: Any) -> tuple[Any, Any]:
    """Returns what `value_and_update` does, and refuses parts that a session can't run."""
    pair = value_and_update(name, metric)
    for part in tf.nest.flatten(pair):
        if not isinstance(part, (tf.Tensor, tf.Variable, tf.Operation)):
            raise TypeError(
                "Values of eval_metric_ops must be (metric_value, update_op) tuples of tensors and "
                f"ops, given: {part!r} for key: {name}."
            )
    return pair


def add_metric_variables(metric: Any) -> None:
    """Puts a Keras metric's variables where local initialization finds them.

    Args:
        metric: A metric; anything but a Keras metric is left alone.
    """
    if not (hasattr(metric, "update_state") and hasattr(metric, "variables")):
        return
    for collection in (v1.GraphKeys.LOCAL_VARIABLES, v1.GraphKeys.METRIC_VARIABLES):
        known = v1.get_collection_ref(collection)
        known.extend(v for v in metric.variables if not any(v is other for other in known))


def split(metrics: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Splits metrics into their values, by name, and their update ops.

    Args:
        metrics: Name -> metric, each as `value_and_update` takes it.

    Returns:
        The values by name, and the update ops in the order of the names.

    Raises:
        TypeError: If a name is not a string, or a metric is none.
    """
    for name in metrics:
        if not isinstance(name, str):
            raise TypeError(
                f"The name of a metric must be a string, given: {name!r} as a key of "
                f"eval_metric_ops, or of what metric_fn returns. Write {str(name)!r}."
            )
    values, updates = {}, []
    for name, metric in sorted(metrics.items()):
        add_metric_variables(metric)
        values[name], update = checked_pair(name, metric)
        updates.append(update)
    return values, updates


def local_zero(name: str) -> Any:
    """Makes a count that begins again with each evaluation.

    Args:
        name: Its name, in the variable scope of the call.
    """
    return v1.get_variable(
        name,
        shape=(),
        dtype=tf.int64,
        initializer=v1.zeros_initializer(),
        trainable=False,
        collections=[v1.GraphKeys.LOCAL_VARIABLES, v1.GraphKeys.METRIC_VARIABLES],
    )
