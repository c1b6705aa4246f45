"""Measures slices of the data: finds the rows of a batch in each, and computes each metric for each."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.evaluating import metric_ops
from tfx_tpu_trainer.estimator._engine.evaluating.buffered_rows import MOST_BYTES, BufferedSlices
from tfx_tpu_trainer.estimator._engine.evaluating.evaluation_plan import check_metrics
from tfx_tpu_trainer.estimator._engine.evaluating.metric_ops import (
    IsolatedMetrics,
    NotIsolatedError,
)
from tfx_tpu_trainer.estimator._engine.evaluating.sampled_rows import unsampled
from tfx_tpu_trainer.estimator._engine.evaluating.session_state import starting_over
from tfx_tpu_trainer.estimator._engine.template import HostFunction

v1 = tf.compat.v1
_logger = tf.get_logger()

SliceValue = str | int | float
Condition = tuple[str, SliceValue | None]

# A dense, sparse or ragged tensor.
Feature = Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slice:
    """Rows that have certain values of certain features.

    Attributes:
        name: The slice's name, different from every other's.
        conditions: Pairs of a feature and a value that is among the row's; `None` is any value.
        excluded: Conditions of other slices: rows that meet all of one of them are not in this one.
    """

    name: str
    conditions: tuple[Condition, ...]
    excluded: tuple[tuple[Condition, ...], ...] = ()


def slice_membership(features: Mapping[str, Feature], slices: Sequence[Slice]) -> tf.Tensor:
    """Finds the slices of each row of a batch.

    A row with several values of a feature is in the slices of all of them; one without any value
    is in none.

    Args:
        features: The features that the slices name: dense of shape [rows, ...], sparse or ragged.
        slices: The slices.

    Returns:
        int32 [rows, slices]: 1 where the row is in the slice, else 0. TPUs take numbers, not strings.
    """
    # A few large ops: with several ops for each of many slices, the graph would take long to build.
    conditions = _Conditions(features, slices)
    membership = conditions.all_hold([one.conditions for one in slices])
    for index, one in enumerate(slices):
        if one.excluded:
            outside = tf.logical_not(tf.reduce_any(conditions.all_hold(one.excluded), axis=1))
            # True in all columns except the slice's own, the only one that loses rows.
            this = tf.one_hot(index, len(slices), on_value=False, off_value=True, dtype=tf.bool)
            membership = tf.logical_and(membership, tf.logical_or(outside[:, tf.newaxis], this))
    membership = tf.cast(membership, tf.int32)
    # Replicas cut a batch by its static number of rows, where every batch is full.
    rows = [f.shape[0] for f in features.values() if f.shape.rank and f.shape[0] is not None]
    membership.set_shape([rows[0] if rows else None, len(slices)])
    return membership


class _Conditions:
    """The conditions of slices: bool [rows, conditions], and each one's column."""

    def __init__(self, features: Mapping[str, Feature], slices: Sequence[Slice]) -> None:
        by_feature: dict[str, dict[SliceValue | None, None]] = {}
        for one in slices:
            for name, value in itertools.chain(one.conditions, *one.excluded):
                by_feature.setdefault(name, {})[value] = None
        self._places: dict[Condition, int] = {}
        columns = []
        for name, values in by_feature.items():
            # The condition on any value comes first.
            asked = sorted(values, key=lambda value: value is not None)
            for value in asked:
                self._places[name, value] = len(self._places)
            columns.append(_holds(*_values_of(features[name]), asked))
        self._holds = columns[0] if len(columns) == 1 else tf.concat(columns, axis=1)

    def all_hold(self, groups: Sequence[Sequence[Condition]]) -> tf.Tensor:
        """Returns bool [rows, groups]: whether all of the group's conditions hold for the row."""
        longest = max(map(len, groups))
        # Shorter groups repeat their last condition, so one gather serves all: [[a, b], [c]]
        # are the places [[0, 1], [2, 2]].
        places = [
            [self._places[group[min(i, len(group) - 1)]] for i in range(longest)]
            for group in groups
        ]
        if longest == 1:
            first = [place for (place,) in places]
            in_order = first == list(range(len(self._places)))
            return self._holds if in_order else tf.gather(self._holds, first, axis=1)
        return tf.reduce_all(tf.gather(self._holds, tf.constant(places), axis=1), axis=2)


def _values_of(feature: Feature) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Returns a feature's values as [rows, values], and a mask of those present; `None` for all."""
    present = None
    if isinstance(feature, tf.SparseTensor):
        there = tf.SparseTensor(
            feature.indices, tf.ones_like(feature.indices[:, 0], tf.int32), feature.dense_shape
        )
        values, present = (
            tf.sparse.to_dense(sparse, validate_indices=False) for sparse in (feature, there)
        )
    elif isinstance(feature, tf.RaggedTensor):
        values = feature.to_tensor()
        present = feature.with_flat_values(tf.ones_like(feature.flat_values, tf.int32)).to_tensor()
    elif feature.shape.rank == 1:
        return feature[:, tf.newaxis], None
    elif feature.shape.rank == 2:
        return feature, None
    else:
        values = feature
    shape = (tf.shape(values)[0], tf.size(values) // tf.maximum(tf.shape(values)[0], 1))
    if present is not None:
        present = tf.cast(tf.reshape(present, shape), tf.bool)
    return tf.reshape(values, shape), present


def _holds(
    values: tf.Tensor, present: tf.Tensor | None, asked: Sequence[SliceValue | None]
) -> tf.Tensor:
    """Returns bool [rows, asked]: whether the row has the value, or for `None` any value."""
    columns = []
    if None in asked:
        there = tf.ones_like(values, tf.bool) if present is None else present
        columns.append(tf.reduce_any(there, axis=1, keepdims=True))
    wanted = [value for value in asked if value is not None]
    if wanted:
        if values.dtype == tf.bool:
            values = tf.cast(values, tf.int32)
        constant = tf.constant(wanted, values.dtype)
        if present is None and values.shape[1] == 1:
            columns.append(tf.equal(values, constant))
        else:
            equal = tf.equal(values[:, :, tf.newaxis], constant)
            if present is not None:
                equal = tf.logical_and(present[:, :, tf.newaxis], equal)
            columns.append(tf.reduce_any(equal, axis=1))
    return columns[0] if len(columns) == 1 else tf.concat(columns, axis=1)


EXAMPLE_COUNT = "example_count"
"""Name under which each slice's number of rows is counted."""

MetricFn = Callable[..., Mapping[str, Any]]


def slice_eval_metrics(
    metric_fn: MetricFn,
    tensors: Any,
    membership: tf.Tensor,
    slice_names: Sequence[str],
    *,
    on_this_host: bool = True,
    most_bytes: int = MOST_BYTES,
) -> tuple[MetricFn, dict[str, Any]]:
    """Makes eval_metrics that measure the whole and slices in one pass over the data.

    The function is called once for all rows, as without slices, and once more in a separate graph, which measures one
    slice after the other on buffered rows. If it needs the model's graph, or the session runs in another process, it is
    called once for each slice, with empty tensors for batches without a row of the slice; means of
    `tf.compat.v1.metrics` and Keras metrics accept those.

    Args:
        metric_fn: The model's function: returns metric name -> metric.
        tensors: Its tensors, a sequence or a mapping, nested or not; axis 0 of each is the rows.
        membership: int32 [rows, slices]: 1 where a row belongs to a slice.
        slice_names: Names of the slices, all different.
        on_this_host: Whether metric_fn's ops run in this process. Defaults to `True`.
        most_bytes: Bytes of rows to buffer before the slices are measured on them. Defaults to 64 MiB.

    Returns:
        The pair (function, tensors) to use instead of the model's own. A slice's metrics are named
        `<metric>/<slice>`; see `split_by_slice`.
    """
    sliced = _SlicedMetrics(metric_fn, slice_names, on_this_host, most_bytes)
    return sliced, {"tensors": tensors, "membership": membership}


class _SlicedMetrics:
    """A metric_fn that measures the whole and each slice."""

    def __init__(
        self, metric_fn: MetricFn, names: Sequence[str], in_process: bool, most_bytes: int
    ) -> None:
        self._metric_fn = metric_fn
        self._names = names
        self._may_buffer = in_process
        self._most_bytes = most_bytes

    def __call__(self, tensors: Any, membership: tf.Tensor) -> dict[str, Any]:
        _check_static_rows(tensors, membership)
        metrics = dict(_call(self._metric_fn, tensors))
        if EXAMPLE_COUNT in metrics:
            raise ValueError(
                f"metric_fn returns a metric {EXAMPLE_COUNT!r}, the name that slices use for their "
                "number of rows: rename it, or leave slicing_specs out."
            )
        isolated = self._isolated(tensors)
        if isolated is None:
            of_slices = self._in_this_graph(tensors, membership)
        else:
            of_slices = self._buffering(isolated, tensors, membership)
        for slice_name, of_slice in zip(self._names, of_slices):
            for name, metric in of_slice.items():
                full_name = _full_name(name, slice_name)
                if full_name in metrics:
                    raise ValueError(
                        f"metric_fn returns a metric {full_name!r}, which is the name of metric "
                        f"{name!r} on slice {slice_name!r}: rename it."
                    )
                metrics[full_name] = metric
        return metrics

    def _isolated(self, tensors: Any) -> IsolatedMetrics | None:
        if not self._may_buffer:
            return None
        try:
            return IsolatedMetrics(unsampled(self._metric_fn), tensors)
        except NotIsolatedError as error:
            _logger.info(
                "metric_fn is called in the model's graph for each of %d slices, which takes "
                "longer than in a separate graph: %s.",
                len(self._names),
                error,
            )
            return None

    def _in_this_graph(self, tensors: Any, membership: tf.Tensor) -> Iterator[dict[str, Any]]:
        """Calls the function once for each slice."""
        members = tf.cast(_checked_against_rows(tensors, membership), tf.bool)
        for index in range(len(self._names)):
            mask = members[:, index]
            with v1.variable_scope(f"slice_{index}"):
                rows = _rows_where(tensors, mask)
                total = metric_ops.local_count(EXAMPLE_COUNT)
                counted = tf.math.count_nonzero(mask, dtype=tf.int64)
                count = total.read_value(), total.assign_add(counted, read_value=False)
                of_slice = _call(unsampled(self._metric_fn), rows)
                metrics = {**of_slice, EXAMPLE_COUNT: count}
            yield metrics

    def _buffering(
        self, isolated: IsolatedMetrics, tensors: Any, membership: tf.Tensor
    ) -> Iterator[dict[str, Any]]:
        """Buffers the rows, and measures the slices in a separate graph."""
        number = len(self._names)
        given = tf.nest.flatten(tensors)
        buffered_slices = BufferedSlices(
            isolated,
            self._names,
            not_rows=[_not_rows(tensor) for tensor in given],
            most_bytes=self._most_bytes,
        )
        batches, update = metric_ops.add_in_python(
            "slices", buffered_slices.add, [membership, *given]
        )
        dtypes, shapes = [tf.int64, *isolated.dtypes], [tf.TensorShape(()), *isolated.shapes]
        found = starting_over(buffered_slices.values, [batches.read_value()], dtypes * number)
        for value, shape in zip(found, shapes * number):
            value.set_shape(shape)
        for start in range(0, len(found), len(dtypes)):
            # All share one update op, which runs once in a session call.
            count, *values = found[start : start + len(dtypes)]
            of_slice = tf.nest.pack_sequence_as(isolated.metrics, values)
            yield {
                name: (value, update) for name, value in {**of_slice, EXAMPLE_COUNT: count}.items()
            }


def split_by_slice(
    metrics: Mapping[str, Any], slice_names: Sequence[str]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Separates the metrics of the whole from those of the slices.

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


def _call(metric_fn: MetricFn, tensors: Any) -> Mapping[str, Any]:
    return check_metrics(HostFunction("eval_metrics", metric_fn, tensors)())


def _rows_where(tensors: Any, mask: tf.Tensor) -> Any:
    rows = tf.where(mask)[:, 0]
    return tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), tensors)


def _full_name(metric: str, slice_name: str) -> str:
    # TensorBoard groups charts by the part of the name before the slash.
    return f"{metric}/{slice_name}"


def _check_static_rows(tensors: Any, membership: tf.Tensor) -> None:
    """Checks, as far as static shapes show, that every tensor has the membership's number of rows."""
    rows = membership.shape.as_list()[0]
    for tensor in tf.nest.flatten(tensors):
        if not isinstance(tensor, tf.Tensor):
            raise ValueError(
                f"eval_metrics has a {type(tensor).__name__}, whose rows can't be picked for "
                "slices: make it dense, or leave slicing_specs out."
            )
        if tensor.shape.rank == 0 or (
            tensor.shape.rank and None not in (tensor.shape[0], rows) and tensor.shape[0] != rows
        ):
            raise ValueError(_not_rows(tensor))


def _checked_against_rows(tensors: Any, membership: tf.Tensor) -> tf.Tensor:
    """Returns the membership, after a check that every tensor has its number of rows."""
    rows = tf.shape(membership)[0]
    checks = [
        v1.debugging.assert_equal(tf.shape(tensor)[0], rows, message=_not_rows(tensor))
        for tensor in tf.nest.flatten(tensors)
    ]
    with tf.control_dependencies(checks):
        return tf.identity(membership)


def _not_rows(tensor: tf.Tensor) -> str:
    # Without an apostrophe: TensorFlow puts a backslash before it.
    return (
        f"eval_metrics tensor {tensor.name} of shape {tensor.shape} does not have the rows of the "
        "batch on axis 0, so it can't be sliced: give metric_fn the values of each row, or leave "
        "slicing_specs out."
    )
