"""Predicts a plan's batches in a session, one in each call or many in a loop, and splits them into rows."""

import dataclasses
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer._support.progress import Batches, Progress
from tfx_tpu_trainer.estimator._engine.copying.graph_copy import GraphCopier
from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import can_be_read_ahead
from tfx_tpu_trainer.estimator._engine.loops.step_loop import (
    IN_CALLERS_THREAD,
    copy_with_direct_draws,
)
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import LoopLengthFromTime, allows_loops
from tfx_tpu_trainer.estimator._engine.sessions.lifecycle import (
    Optimizing,
    SessionCreatorFn,
    closed_in_thread,
    open_restored_session,
)
from tfx_tpu_trainer.estimator._engine.sessions.reconnecting import (
    ReconnectingSession,
    needed_tasks,
)
from tfx_tpu_trainer.estimator._engine.sessions.run_errors import run_errors_explained
from tfx_tpu_trainer.estimator._engine.sessions.stall_watch import StallWatch
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate, SessionSettings

v1 = tf.compat.v1


# A session call costs about a tenth of a millisecond: longer calls would gain nothing, and the
# input is not read while rows are split.
_LONGEST_SECONDS = 0.02
_MOST_BYTES = 4 << 20


@dataclasses.dataclass(frozen=True)
class PredictionLoop:
    """A loop of batches."""

    # Placeholder of the number of batches to run, an int32 scalar.
    count: tf.Tensor
    # For each prediction, the rows of all batches, concatenated, and the number of rows of each
    # batch; fetching them runs the loop.
    run: tuple[tuple[tf.Tensor, tf.Tensor], ...]
    # The same for the batches that a loop had finished when it failed.
    rest: tuple[tuple[tf.Tensor, tf.Tensor], ...]
    # Names of the predictions; `None` for a single tensor.
    names: tuple[str, ...] | None

    def batches(self, found: Sequence[tuple[np.ndarray, np.ndarray]]) -> Iterator[Any]:
        """Splits the values of `run` or `rest` into batches, in the structure of predictions."""
        columns = [
            # Lengths of 2 and 1 are rows[0:2] and rows[2:3].
            [rows[end - length : end] for length, end in zip(lengths, np.cumsum(lengths))]
            for rows, lengths in found
        ]
        if self.names is None:
            yield from columns[0]
        else:
            for batch in zip(*columns):
                yield dict(zip(self.names, batch))


def allows_prediction_loop(predictions: Any) -> bool:
    """Returns whether batches of predictions can be concatenated and split again."""
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
    """Adds a loop of batches to the default graph."""
    # The session keeps the predictions, so those before a batch that fails, or before the end
    # of the input, are not lost.
    columns = [
        _Column(value.dtype, value.shape, name=f"kept_predictions_{number}")
        for number, value in enumerate(columns_of(predictions))
    ]

    def one_batch(number: tf.Tensor, more: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
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


def run_prediction_loop(loop: PredictionLoop, session: ReconnectingSession) -> Iterator[Any]:
    """Yields batches until the input ends, in calls of a single batch, then up to twice as many as before."""
    length = LoopLengthFromTime(_LONGEST_SECONDS)
    count, most = 1, 1
    while not session.should_stop():
        started = time.monotonic()
        try:
            # Handing each op to another thread costs more than it gains.
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


def _finished_batches(loop: PredictionLoop, session: ReconnectingSession) -> Iterator[Any]:
    try:
        rest = session.run(loop.rest)
    except tf.errors.FailedPreconditionError:
        # The first call failed before its first op, for example because a kernel is missing.
        return
    yield from loop.batches(rest)


class _Column:
    """One prediction's values in the batches of a loop, kept in the session."""

    def __init__(self, dtype: tf.DType, shape: tf.TensorShape, *, name: str) -> None:
        self._dtype = dtype
        self._shape = tf.TensorShape([None, *shape[1:]])
        self._handle = tf.raw_ops.VarHandleOp(dtype=tf.variant, shape=(), shared_name=name)

    def clear(self) -> tf.Operation:
        return self._assign(
            tf.raw_ops.EmptyTensorList(
                element_shape=self._element_shape(), max_num_elements=-1, element_dtype=self._dtype
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


_ENDED = object()


@dataclasses.dataclass(frozen=True)
class PredictionPlan:
    """A prediction, placed and ready to run."""

    template: ModelTemplate
    # The predictions of a batch.
    fetches: Any
    # Number of rows of the batch, 0 at the end of the input; `None` where the end of the input ends
    # the session by itself.
    rows: tf.Tensor | None = None
    session_creator: SessionCreatorFn = v1.train.ChiefSessionCreator

    @property
    def runs_template(self) -> bool:
        """Whether the template's own nodes run, instead of a function of replicas."""
        return self.rows is None and self.session_creator is v1.train.ChiefSessionCreator


def predict_batches(
    plan: PredictionPlan,
    *,
    settings: SessionSettings,
    hooks: Sequence[v1.train.SessionRunHook],
    checkpoint_path: str | None,
    master: str = "",
) -> Generator[Any, None, None]:
    """Yields the predictions of each batch until the input ends; closing the generator closes the session."""
    # The template's graph is the default one while the generator runs, for hooks, but not between batches. Where hooks
    # and input allow it, a session call runs several batches.
    batches = _batches_of_session(
        plan, settings=settings, hooks=hooks, checkpoint_path=checkpoint_path, master=master
    )
    graph = plan.template.graph
    try:
        while True:
            # A block that stays open over a `yield` would make this the default graph of the caller's code, and would
            # close out of order: "Nesting violated for default stack".
            with graph.as_default():
                batch = next(batches, _ENDED)
            if batch is _ENDED:
                return
            yield batch
    finally:
        with graph.as_default():
            batches.close()


def _batches_of_session(
    plan: PredictionPlan,
    *,
    settings: SessionSettings,
    hooks: Sequence[v1.train.SessionRunHook],
    checkpoint_path: str | None,
    master: str,
) -> Generator[Any, None, None]:
    all_hooks = [*hooks, *plan.template.hooks]
    loop = None
    if not master and allows_loops(all_hooks):
        loop = _make_loop(plan)
    by_itself = loop is None and plan.runs_template
    session = open_restored_session(
        settings=settings,
        master=master,
        scaffold=plan.template.make_scaffold(),
        checkpoint_path=checkpoint_path,
        hooks=all_hooks,
        optimizing=Optimizing.CONFIGURED if by_itself else Optimizing.NOTHING,
        session_creator=plan.session_creator,
    )
    # In a reopened session the input would begin again, and rows would be yielded twice.
    watch = StallWatch(
        "Prediction",
        unit="batch",
        timeout_secs=settings.stall_timeout_secs,
        tasks=needed_tasks(settings, master),
    )
    calls = ReconnectingSession(session, watch, retries=0)
    explained = run_errors_explained(plan.template)
    closing = closed_in_thread(session, calls, master=master)
    if loop is not None:
        with watch, closing, explained:
            yield from run_prediction_loop(loop, calls)
        return
    fetches = [plan.fetches] if plan.rows is None else [plan.fetches, plan.rows]
    with watch, closing, explained:
        while not calls.should_stop():
            predictions, *rows = calls.run(fetches)
            if rows and not rows[0]:
                return
            yield predictions


def told(batches: Iterable[Any], progress: Progress) -> Iterator[Any]:
    """Yields batches, and reports their number to a `Progress` when it is due."""
    done, is_shown = 0, False
    for batch in batches:
        done += 1
        if progress.is_due():
            is_shown = done > 1
            progress.counted(done)
        yield batch
    if is_shown:
        progress.say(f"predict: {Batches(done=done)}")


def _make_loop(plan: PredictionPlan) -> PredictionLoop | None:
    """Returns a loop of the template's batches, or `None` if the template can't run in a loop."""
    template = plan.template
    if not plan.runs_template or not allows_prediction_loop(plan.fetches):
        return None
    if not can_be_read_ahead(template.graph):
        return None
    copier = GraphCopier(template.graph)
    predictions = columns_of(plan.fetches)

    def make_batch() -> tuple[list[tf.Tensor], tf.Tensor]:
        return copy_with_direct_draws(copier, predictions, name="batch"), tf.constant(True)

    return build_prediction_loop(plan.fetches, make_batch)


def select_predictions(predictions: Any, predict_keys: Sequence[str] | str | None) -> Any:
    """Returns the requested predictions."""
    if not predict_keys:
        return predictions
    if not isinstance(predictions, Mapping):
        raise ValueError(
            "predict_keys argument is not valid in case of non-dict predictions; got "
            f"{predict_keys!r} for {predictions!r}."
        )
    if not isinstance(predict_keys, Iterable):
        raise TypeError(f"predict_keys must be a name or a list of names; got {predict_keys!r}.")
    wanted = {predict_keys} if isinstance(predict_keys, str) else set(predict_keys)
    kept = {name: value for name, value in predictions.items() if name in wanted}
    if not kept:
        raise ValueError(
            f"Expected to run at least one output from {sorted(predictions)}, provided "
            f"{sorted(wanted)}."
        )
    return kept


def single_rows(batches: Iterable[Any]) -> Iterator[Any]:
    """Yields the rows of batches, one by one."""
    for batch in batches:
        if not isinstance(batch, Mapping):
            _check_has_rows("predictions", batch)
            yield from batch
            continue
        _check_batch_length(batch)
        yield from _rows_of(batch)


def _rows_of(batch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Splits a batch into rows."""
    # Column by column, which takes half the time of making each row's mapping at once.
    columns = iter(batch.items())
    first, values = next(columns, ("", ()))
    rows = [{first: value} for value in values]
    for name, values in columns:
        for row, value in zip(rows, values):
            row[name] = value
    return rows


def _check_has_rows(name: str, value: Any) -> None:
    if not value.shape:
        raise ValueError(
            f"{name} must have the batch as its first dimension, but is the scalar {value}. Use "
            "yield_single_examples=False for predictions that are not one per row."
        )


def _check_batch_length(batch: Mapping[str, Any]) -> None:
    for name, value in batch.items():
        _check_has_rows(f"predictions[{name}]", value)
    lengths = {name: value.shape[0] for name, value in batch.items()}
    first = next(iter(lengths.values()), None)
    for name, length in lengths.items():
        if length == first:
            continue
        raise ValueError(
            f"Batch length of predictions should be same. {name} has different batch length than "
            f"others. Lengths: {lengths}. Use "
            "yield_single_examples=False for predictions that are not one per row."
        )
