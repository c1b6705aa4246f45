"""Samples an evaluation's rows in the same pass, and estimates the error of its metrics."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.evaluating import metric_ops
from tfx_tpu_trainer.estimator._engine.evaluating.metric_ops import (
    IsolatedMetrics,
    NotIsolatedError,
)

v1 = tf.compat.v1
_logger = tf.get_logger()

MOST_ROWS = 20_000
"""Number of rows to keep."""

_MOST_BYTES = 32 << 20
_REPLICATES, _ROWS_OF_REPLICATE = 100, 2000
_SEED = 20_240

MetricFn = Callable[..., Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowSample:
    """Rows of an evaluation, all sampled with the same probability.

    Attributes:
        columns: Name of a tensor of eval_metrics -> its values, with rows on axis 0. Tensors of a list have the names
            of metric_fn's arguments.
        seen: How many rows the evaluation had.
        deviations: Returns metric name -> its deviations from the mean in evaluations on equally many other rows, one
            for each replicate; see `RowSampler.taken`.
    """

    columns: Mapping[str, np.ndarray]
    seen: int
    deviations: Callable[[], Mapping[str, np.ndarray]]


# How rows are sampled. Each row gets a random key, and the rows with the smallest keys are kept: so
# every row is as likely as any other to be kept, for any number of rows. The invariant is that the
# n-th row of an evaluation always gets the n-th number of the generator, as `random(3)` and
# `random(2)` give the numbers of `random(5)`: so keys are drawn for all rows of a batch, before any
# is left out.
class RowSampler:
    """Samples the rows that a metric_fn receives.

    Which rows are kept depends only on their positions in the evaluation: two models that are
    evaluated on the same rows, in any batches, are sampled at the same rows.
    """

    def __init__(self, *, most_rows: int = MOST_ROWS) -> None:
        """Starts without rows.

        Args:
            most_rows: The most rows to keep. Defaults to 20,000; fewer if rows are wide, to keep at most 32 MB.
        """
        self._most_rows = most_rows
        self._metric_fn: MetricFn | None = None
        self._specs: Any = None
        self._names: Sequence[str] = ()
        self._start()

    def _start(self) -> None:
        self._random = np.random.default_rng(_SEED)
        self._seen = 0
        self._keys = np.zeros(0)
        self._columns: list[np.ndarray] | None = None
        self._gave_up = False

    def metric_fn(self, metric_fn: MetricFn) -> MetricFn:
        """Wraps a metric_fn to sample its rows.

        Args:
            metric_fn: The function: returns metric name -> metric.

        Returns:
            The function to use in its place. `unsampled` unwraps it.
        """
        return _SampledMetricFn(metric_fn, self)

    def taken(self) -> RowSample | None:
        """Returns the sample of the last evaluation; `None` if there is none.

        The sample's deviations are those of 100 replicates of the m out of n bootstrap (Bickel, Götze and
        van Zwet, 1997): a replicate has 2,000 rows at most, and its deviation is scaled to the
        evaluation's number of rows. Replicates of two models that were sampled at the same rows have the
        same rows, so their differences are those of a paired bootstrap. Only scalar metrics have
        deviations, and only if metric_fn works without the model's graph.
        """
        if self._gave_up or self._columns is None or not self._seen or self._metric_fn is None:
            return None
        self._prune(self._most_rows)
        columns, seen = dict(zip(self._names, self._columns)), self._seen
        find = functools.partial(
            _deviations, self._metric_fn, self._specs, list(columns.values()), seen
        )
        return RowSample(columns=columns, seen=seen, deviations=functools.cache(find))

    def describe(self, metric_fn: MetricFn, tensors: Any, names: Sequence[str]) -> None:
        """Records the metric_fn that receives the rows, and the form in which it does."""
        self._metric_fn, self._names = metric_fn, names
        self._specs = tf.nest.map_structure(
            lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), tensors
        )

    def add(self, before: np.int64, *tensors: np.ndarray) -> np.int64:
        """Adds a batch; `before` and the result count the evaluation's batches, from 0."""
        if before == 0:
            self._start()
        after = np.int64(before + 1)
        rows = {tensor.shape[:1] for tensor in tensors}
        if self._gave_up or len(rows) != 1 or rows == {()}:
            # A tensor without rows on axis 0 can't be sampled.
            self._gave_up = True
            return after
        ((count,),) = rows
        batch = [np.asarray(tensor) for tensor in tensors]
        if self._columns is None:
            self._columns = [column[:0] for column in batch]
        if any(old.shape[1:] != new.shape[1:] for old, new in zip(self._columns, batch)):
            self._gave_up = True
            return after
        keys = self._random.random(count)
        self._seen += count
        if len(self._keys) >= self._most_rows:
            # Enough rows are kept: a new one needs a smaller key than their largest. So most rows
            # of a long evaluation are not even copied.
            kept = keys < self._keys.max()
            keys, batch = keys[kept], [column[kept] for column in batch]
        self._keys = np.concatenate([self._keys, keys])
        self._columns = [np.concatenate(pair) for pair in zip(self._columns, batch)]
        if len(self._keys) > self._limit() * 3 // 2:
            self._prune(self._limit())
        return after

    def _limit(self) -> int:
        assert self._columns is not None
        of_row = sum(column.nbytes for column in self._columns) / max(1, len(self._keys))
        self._most_rows = max(1, min(self._most_rows, int(_MOST_BYTES / max(1.0, of_row))))
        return self._most_rows

    def _prune(self, count: int) -> None:
        """Keeps the rows with the smallest keys, in their order."""
        assert self._columns is not None
        if len(self._keys) > count:
            kept = np.sort(np.argpartition(self._keys, count)[:count])
            self._keys = self._keys[kept]
            self._columns = [column[kept] for column in self._columns]


class _SampledMetricFn:
    """A metric_fn whose first metric samples the rows when it is updated."""

    def __init__(self, metric_fn: MetricFn, sampler: RowSampler) -> None:
        functools.update_wrapper(self, metric_fn)
        self.metric_fn = metric_fn
        self._sampler = sampler

    def __call__(self, *args: Any, **kwargs: Any) -> Mapping[str, Any]:
        metrics = self.metric_fn(*args, **kwargs)
        tensors = kwargs or list(args)
        given = tf.nest.flatten(tensors)
        if (
            not isinstance(metrics, Mapping)
            or not metrics
            or not all(isinstance(tensor, tf.Tensor) for tensor in given)
        ):
            return metrics
        self._sampler.describe(self.metric_fn, tensors, self._names(tensors))
        name = min(metrics)
        metric_ops.add_metric_variables(metrics[name])
        value, update = metric_ops.value_and_update(name, metrics[name])
        _, counted = metric_ops.add_in_python("sampled_rows", self._sampler.add, given)
        return {**metrics, name: (value, tf.group(*tf.nest.flatten(update), counted))}

    def _names(self, tensors: Any) -> list[str]:
        """Returns the names of tensors, in flattened order."""
        if isinstance(tensors, Mapping):
            named = sorted(tensors.items())
        else:
            parameters = list(inspect.signature(self.metric_fn).parameters)
            more = [f"{len(parameters) + n}" for n in range(len(tensors))]
            named = list(zip([*parameters, *more], tensors))
        names = []
        for name, value in named:
            parts = tf.nest.flatten(value)
            one = len(parts) == 1
            names += [name if one else f"{name}/{n}" for n in range(len(parts))]
        return names


def unsampled(metric_fn: MetricFn) -> MetricFn:
    """Returns the metric_fn that a sampler has wrapped; any other is returned unchanged."""
    return metric_fn.metric_fn if isinstance(metric_fn, _SampledMetricFn) else metric_fn


def _deviations(
    metric_fn: MetricFn, specs: Any, columns: Sequence[np.ndarray], seen: int
) -> dict[str, np.ndarray]:
    try:
        metrics = IsolatedMetrics(metric_fn, specs)
    except NotIsolatedError as error:
        _logger.info("The metrics have no intervals: %s.", error)
        return {}
    random, rows = np.random.default_rng(_SEED), len(columns[0])
    drawn = min(rows, _ROWS_OF_REPLICATE)
    replicates: dict[str, list[float]] = {}
    for _ in range(_REPLICATES):
        picked = random.integers(0, rows, drawn)
        metrics.start(None)
        metrics.update([column[picked] for column in columns])
        values = tf.nest.pack_sequence_as(metrics.metrics, metrics.values())
        for name, value in values.items():
            if np.ndim(value) == 0 and np.asarray(value).dtype.kind in "biuf":
                replicates.setdefault(name, []).append(float(value))
    # A mean's deviation is proportional to 1 / sqrt(rows): on 200,000 rows it is a tenth of that on
    # a replicate's 2,000.
    scale = np.sqrt(drawn / seen)
    return {
        name: scale * (np.array(of_metric) - np.mean(of_metric))
        for name, of_metric in replicates.items()
        if np.isfinite(of_metric).all()
    }
