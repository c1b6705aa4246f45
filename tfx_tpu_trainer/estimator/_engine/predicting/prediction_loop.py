"""Several batches of predictions in one session call."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.loops.direct_draws import IN_CALLERS_THREAD
from tfx_tpu_trainer.estimator._engine.loops.loop_hook import LoopLengthFromTime
from tfx_tpu_trainer.estimator._engine.sessions.patient_session import PatientSession

v1 = tf.compat.v1

# A session call costs about a tenth of a millisecond: more in one call would win nothing, and
# would keep the input from being read while the rows are taken apart.
_LONGEST_SECONDS = 0.02
_MOST_BYTES = 4 << 20


@dataclasses.dataclass(frozen=True)
class PredictionLoop:
    """A loop of batches.

    Attributes:
        count: Placeholder of the number of batches to run, an int32 scalar.
        run: For each prediction, the rows of all batches one after the other, and the number of
            rows of each batch; fetching them runs the loop.
        rest: The same for what a loop that failed had finished before.
        names: Names of the predictions; `None` where they are a single tensor.
    """

    count: tf.Tensor
    run: tuple[tuple[tf.Tensor, tf.Tensor], ...]
    rest: tuple[tuple[tf.Tensor, tf.Tensor], ...]
    names: tuple[str, ...] | None

    def batches(self, found: Sequence[tuple[np.ndarray, np.ndarray]]) -> Iterator[Any]:
        """Takes what `run` or `rest` gave apart into batches, in the structure of predictions."""
        columns = [
            [rows[end - length : end] for length, end in zip(lengths, np.cumsum(lengths))]
            for rows, lengths in found
        ]
        if self.names is None:
            yield from columns[0]
        else:
            for batch in zip(*columns):
                yield dict(zip(self.names, batch))


def allows_prediction_loop(predictions: Any) -> bool:
    """Tells whether batches of predictions can be put one after the other and taken apart again."""
    values = columns_of(predictions)
    return bool(values) and all(
        isinstance(value, tf.Tensor) and value.shape.rank and value.shape[1:].is_fully_defined()
        for value in values
    )


def columns_of(predictions: Any) -> list[Any]:
    """Returns the values of a mapping, in its own order, or the single value."""
    return list(predictions.values()) if isinstance(predictions, Mapping) else [predictions]


def build_prediction_loop(
    predictions: Any, make_batch: Callable[[], tuple[Sequence[tf.Tensor], tf.Tensor]]
) -> PredictionLoop:
    """Puts a loop of batches into the default graph.

    What a batch gives is kept in the session, so that the batches before one that fails, or
    before the end of the input, are not lost.
    """
    columns = [
        _Column(value.dtype, value.shape, name=f"kept_predictions_{number}")
        for number, value in enumerate(columns_of(predictions))
    ]

    def one_batch(number: tf.Tensor, more: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        del more
        values, more = make_batch()
        kept = [column.append(value) for column, value in zip(columns, values)]
        with tf.control_dependencies(kept):
            return number + 1, tf.identity(more)

    def all_batches(count: tf.Tensor) -> list[tuple[tf.Tensor, tf.Tensor]]:
        with tf.control_dependencies([column.clear() for column in columns]):
            start = (tf.constant(0), tf.constant(True))
        (done, _) = tf.while_loop(
            lambda number, more: tf.logical_and(more, number < count),
            one_batch,
            start,
            parallel_iterations=1,
        )
        with tf.control_dependencies([done]):
            return [column.read() for column in columns]

    count = v1.placeholder(tf.int32, shape=(), name="batches_in_a_call")
    run = tf.function(all_batches, autograph=False)(count)
    rest = tf.function(lambda: [column.read() for column in columns], autograph=False)()
    names = tuple(predictions) if isinstance(predictions, Mapping) else None
    return PredictionLoop(count, tuple(run), tuple(rest), names)


def run_prediction_loop(loop: PredictionLoop, session: PatientSession) -> Iterator[Any]:
    """Yields batches until the input ends.

    A call runs as many batches as were yielded before it, at most: the first one runs a single
    batch, and the input is never read further ahead than it was read before.
    """
    length = LoopLengthFromTime(_LONGEST_SECONDS)
    count, most = 1, 1
    while not session.should_stop():
        started = time.monotonic()
        try:
            # To hand each op to another thread costs more than it wins.
            found = session.run(loop.run, feed_dict={loop.count: count}, options=IN_CALLERS_THREAD)
        except tf.errors.OpError:
            yield from _finished_batches(loop, session)
            raise
        length.report(seconds=time.monotonic() - started, steps=count)
        yield from loop.batches(found)
        if len(found[0][1]) < count:
            return
        size = sum(rows.nbytes for rows, _ in found) / count
        most = min(2 * count, int(_MOST_BYTES / max(size, 1)))
        count = max(1, min(most, length()))


def _finished_batches(loop: PredictionLoop, session: PatientSession) -> Iterator[Any]:
    try:
        rest = session.run(loop.rest)
    except tf.errors.FailedPreconditionError:
        # A first call that found no kernel for an op of the model has kept nothing.
        return
    yield from loop.batches(rest)


class _Column:
    """What the batches of a loop gave for one prediction, kept in the session."""

    def __init__(self, dtype: tf.DType, shape: tf.TensorShape, *, name: str) -> None:
        self._dtype = dtype
        self._shape = tf.TensorShape([None, *shape[1:]])
        self._handle = tf.raw_ops.VarHandleOp(dtype=tf.variant, shape=(), shared_name=name)

    def clear(self) -> tf.Operation:
        return self._assign(
            tf.raw_ops.EmptyTensorList(
                element_shape=self._element_shape(),
                max_num_elements=-1,
                element_dtype=self._dtype,
            )
        )

    def append(self, value: tf.Tensor) -> tf.Operation:
        return self._assign(tf.raw_ops.TensorListPushBack(input_handle=self._list(), tensor=value))

    def read(self) -> tuple[tf.Tensor, tf.Tensor]:
        joined = tf.raw_ops.TensorListConcatV2(
            input_handle=self._list(),
            element_shape=self._element_shape(),
            leading_dims=tf.constant([], tf.int64),
            element_dtype=self._dtype,
        )
        return joined.tensor, joined.lengths

    def _list(self) -> tf.Tensor:
        return tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=tf.variant)

    def _assign(self, value: tf.Tensor) -> tf.Operation:
        return tf.raw_ops.AssignVariableOp(resource=self._handle, value=value)

    def _element_shape(self) -> tf.Tensor:
        sizes = [-1 if size is None else size for size in self._shape.as_list()]
        return tf.constant(sizes, tf.int32)
