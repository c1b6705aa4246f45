"""Metrics by slice: metric_fn called once more for each slice, on the slice's rows only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.engine.evaluating.evaluation_plan import check_metrics
from tfx_tpu_trainer.engine.template import HostFunction

v1 = tf.compat.v1

EXAMPLE_COUNT = "example_count"
"""Name under which each slice's number of rows is counted."""

MetricFn = Callable[..., Mapping[str, Any]]


def slice_eval_metrics(
    metric_fn: MetricFn, tensors: Any, membership: tf.Tensor, slice_names: Sequence[str]
) -> tuple[MetricFn, dict[str, Any]]:
    """Makes eval_metrics that measure slices beside the whole, in the same pass over the data.

    The function is called once for all rows, as ever, and once for each slice on the rows of the
    slice. Batches without a row of a slice give it empty tensors: means of `tf.compat.v1.metrics`
    and Keras metrics take them as they are.

    Args:
        metric_fn: The model's function: returns metric name -> metric.
        tensors: Its tensors, a sequence or a mapping, nested or not; axis 0 of each is the rows.
        membership: int32 [rows, slices]: 1 where a row belongs to a slice.
        slice_names: Names of the slices, all different.

    Returns:
        The pair (function, tensors) to use in place of the model's own. Metrics of a slice are
        named `<metric>/<slice>`, see `split_by_slice`.
    """

    def all_metrics(tensors: Any, membership: tf.Tensor) -> dict[str, Any]:
        def call(arguments: Any) -> Mapping[str, Any]:
            return check_metrics(HostFunction("eval_metrics", metric_fn, arguments)())

        members = tf.cast(_checked_against_rows(tensors, membership), tf.bool)
        metrics = dict(call(tensors))
        if EXAMPLE_COUNT in metrics:
            raise ValueError(
                f"metric_fn gives a metric {EXAMPLE_COUNT!r}, a name that slices need for their "
                "number of rows: rename it, or leave slicing_specs out."
            )
        for index, slice_name in enumerate(slice_names):
            mask = members[:, index]
            with v1.variable_scope(f"slice_{index}"):
                rows = _rows_where(tensors, mask)
                of_slice = {**call(rows), EXAMPLE_COUNT: _count(mask)}
            for name, metric in of_slice.items():
                full_name = _full_name(name, slice_name)
                if full_name in metrics:
                    raise ValueError(
                        f"metric_fn gives a metric {full_name!r}, which is the name of metric "
                        f"{name!r} on slice {slice_name!r}: rename it."
                    )
                metrics[full_name] = metric
        return metrics

    return all_metrics, {"tensors": tensors, "membership": membership}


def split_by_slice(
    metrics: Mapping[str, Any], slice_names: Sequence[str]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Takes the metrics of the whole and of the slices apart.

    Args:
        metrics: Name -> value, as an evaluation with `slice_eval_metrics` gives them.
        slice_names: Names of the slices.

    Returns:
        The metrics of the whole, and for each slice its own by the same names, `EXAMPLE_COUNT`
        among them.
    """
    known = (*metrics, EXAMPLE_COUNT)
    parts = [{name: _full_name(name, slice_name) for name in known} for slice_name in slice_names]
    of_slices = {full for part in parts for full in part.values()}
    overall = {name: value for name, value in metrics.items() if name not in of_slices}
    return overall, [
        {name: metrics[full] for name, full in part.items() if full in metrics} for part in parts
    ]


def _rows_where(tensors: Any, mask: tf.Tensor) -> Any:
    rows = tf.where(mask)[:, 0]
    return tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), tensors)


def _full_name(metric: str, slice_name: str) -> str:
    # TensorBoard puts the charts of one metric together by what stands before the slash.
    return f"{metric}/{slice_name}"


def _count(mask: tf.Tensor) -> tuple[tf.Tensor, Any]:
    total = v1.get_variable(
        EXAMPLE_COUNT,
        shape=(),
        dtype=tf.int64,
        initializer=v1.zeros_initializer(),
        trainable=False,
        collections=[v1.GraphKeys.LOCAL_VARIABLES, v1.GraphKeys.METRIC_VARIABLES],
    )
    rows = tf.math.count_nonzero(mask, dtype=tf.int64)
    return total.read_value(), total.assign_add(rows, read_value=False)


def _checked_against_rows(tensors: Any, membership: tf.Tensor) -> tf.Tensor:
    """Returns the membership back, once every tensor is seen to have its number of rows."""
    rows = tf.shape(membership)[0]
    checks = []
    for tensor in tf.nest.flatten(tensors):
        if not isinstance(tensor, tf.Tensor):
            raise ValueError(
                f"eval_metrics has a {type(tensor).__name__}, whose rows can't be picked for "
                "slices: make it dense, or leave slicing_specs out."
            )
        static = membership.shape.as_list()[0]
        if tensor.shape.rank == 0 or (
            tensor.shape.rank
            and None not in (tensor.shape[0], static)
            and tensor.shape[0] != static
        ):
            raise ValueError(_not_rows(tensor))
        checks.append(
            v1.debugging.assert_equal(tf.shape(tensor)[0], rows, message=_not_rows(tensor))
        )
    with tf.control_dependencies(checks):
        return tf.identity(membership)


def _not_rows(tensor: tf.Tensor) -> str:
    # Without an apostrophe: TensorFlow puts a backslash before it.
    return (
        f"eval_metrics tensor {tensor.name} of shape {tensor.shape} does not have the rows of the "
        "batch on axis 0, so no slice of it can be taken: give metric_fn the values of each row, or "
        "leave slicing_specs out."
    )
