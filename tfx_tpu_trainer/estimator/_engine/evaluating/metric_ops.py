"""Metrics as pairs of a value and an update op."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1


def value_and_update(name: str, metric: Any) -> tuple[Any, Any]:
    """Returns the value and the update op of a metric."""
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
    """Puts a Keras metric's variables where local initialization finds them."""
    if not (hasattr(metric, "update_state") and hasattr(metric, "variables")):
        return
    for collection in (v1.GraphKeys.LOCAL_VARIABLES, v1.GraphKeys.METRIC_VARIABLES):
        known = v1.get_collection_ref(collection)
        known.extend(v for v in metric.variables if not any(v is other for other in known))


def split(metrics: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Splits metrics into their values, by name, and their update ops."""
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
    """Makes a count that begins again with each evaluation."""
    return v1.get_variable(
        name,
        shape=(),
        dtype=tf.int64,
        initializer=v1.zeros_initializer(),
        trainable=False,
        collections=[v1.GraphKeys.LOCAL_VARIABLES, v1.GraphKeys.METRIC_VARIABLES],
    )
