"""Runs an evaluation in a session, logs how much it has read, and writes its result for TensorBoard."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from tfx_tpu_trainer._support.progress import Batches, Progress
from tfx_tpu_trainer._support.waiting import FIRST_NOTICE_SECONDS, NOTICE_SECONDS
from tfx_tpu_trainer.estimator._engine.checkpointing.checkpoints import check_writable
from tfx_tpu_trainer.estimator._engine.checkpointing.savers import converted_once, fitted_scaffold
from tfx_tpu_trainer.estimator._engine.evaluating.evaluation_plan import (
    GLOBAL_STEP,
    LOSS,
    LOSS_BY_ROWS,
    SECONDS_PER_CALL,
    EvaluationPlan,
    sums_so_far,
)
from tfx_tpu_trainer.estimator._engine.evaluating.session_state import calls_python, leaves_no_state
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import LoopEndHook, allows_loops
from tfx_tpu_trainer.estimator._engine.sessions.lifecycle import (
    KeptSession,
    Optimizing,
    closed_in_thread,
    open_restored_session,
)
from tfx_tpu_trainer.estimator._engine.sessions.reconnecting import (
    ReconnectingSession,
    needed_tasks,
)
from tfx_tpu_trainer.estimator._engine.sessions.run_errors import run_errors_explained
from tfx_tpu_trainer.estimator._engine.sessions.stall_watch import StallWatch
from tfx_tpu_trainer.estimator._engine.template import SessionSettings, folder_of

v1 = tf.compat.v1
_logger = tf.get_logger()

_LOOK_SECONDS = 1.0
_UNWATCHED = Progress()


class RowsReadHook(LoopEndHook):
    """Checks from time to time how many batches and rows an evaluation has read."""

    def __init__(
        self, first_secs: float = FIRST_NOTICE_SECONDS, every_secs: float = NOTICE_SECONDS
    ) -> None:
        self._first = first_secs
        self._every = every_secs

    def begin(self) -> None:
        self._sums = sums_so_far()

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        self._started = time.monotonic()
        self._due = self._started + self._first

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs | None:
        """Fetches the sums when a check is due."""
        return v1.train.SessionRunArgs(self._sums) if time.monotonic() >= self._due else None

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Passes the sums to `look`."""
        if run_values.results is not None:
            now = time.monotonic()
            self._due = now + self._every
            batches, rows = run_values.results
            self.look(int(batches), int(rows), now - self._started)

    def look(self, batches: int, rows: int, seconds: float) -> None:
        """Receives the batches and rows read so far, and the seconds since the start."""


class SayRowsRead(RowsReadHook):
    """Logs each minute how much an evaluation to the end of its input has read."""

    def look(self, batches: int, rows: int, seconds: float) -> None:
        """Logs the counts."""
        _logger.warning(
            "Evaluation has read %d batches (%d rows) in %.0f s. It ends when its input ends; if "
            "the input is endless, give evaluate(steps=...), EvalSpec(steps=...) or "
            "eval_args.num_steps.",
            batches,
            rows,
            seconds,
        )


class TellBatches(RowsReadHook):
    """Reports an evaluation's batches to a `Progress` when it is due."""

    def __init__(self, progress: Progress, *, steps: int | None) -> None:
        super().__init__(0.0, 0.0)
        self._progress = progress
        self._steps = steps

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs | None:
        """Fetches the sums when the `Progress` is due."""
        return super().before_run(run_context) if self._progress.is_due() else None

    def look(self, batches: int, rows: int, seconds: float) -> None:
        """Passes the counts on."""
        self._progress.counted(batches, total=self._steps, rows=rows)


class RefuseMoreRows(RowsReadHook):
    """Ends an evaluation that has read more rows than there can be."""

    def __init__(
        self, most: int, error: Callable[[int], Exception], *, every_secs: float = _LOOK_SECONDS
    ) -> None:
        """Sets the limit.

        Args:
            most: The most rows.
            error: Makes the error from the number of rows read.
            every_secs: Seconds between checks. Defaults to 1.
        """
        super().__init__(every_secs, every_secs)
        self._most = most
        self._error = error

    def look(self, batches: int, rows: int, seconds: float) -> None:
        """Raises the error if there are more rows."""
        if max(batches, rows) > self._most:
            raise self._error(max(batches, rows))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalResult:
    """The result of an evaluation.

    Attributes:
        metrics: Name -> NumPy value, as `evaluate()` returns it: the model's metrics, `global_step` and `loss`. For a
            template that runs unchanged, `loss` is the mean of the batch losses with equal weights, as in the original;
            for replicas it is `loss_by_rows`.
        loss_by_rows: The mean of the batch losses, weighted by their rows: exact for losses that are means over rows.
            NaN where batches have no rows.
        num_examples: Rows evaluated; `None` if the features have no axis to count.
        global_step: Global step of the variables.
        checkpoint_path: The checkpoint; `None` for freshly initialized variables.
        seconds: Wall time of the session, without building the graph.
        num_batches: Batches evaluated.
    """

    metrics: Mapping[str, Any]
    loss_by_rows: float
    num_examples: int | None
    global_step: int
    checkpoint_path: str | None
    seconds: float
    num_batches: int = 0

    @property
    def losses(self) -> dict[str, float]:
        """Returns the `loss` of `evaluate()`, and `loss_by_rows` if there are rows."""
        if LOSS not in self.metrics:
            return {}
        losses = {LOSS: float(self.metrics[LOSS])}
        if not math.isnan(self.loss_by_rows):
            losses[LOSS_BY_ROWS] = self.loss_by_rows
        return losses

    def __str__(self) -> str:
        """Describes the batches and rows evaluated, and the losses."""
        counts = str(Batches(done=self.num_batches, rows=self.num_examples))
        losses = [f"{name} {loss:.4g}" for name, loss in self.losses.items()]
        return ", ".join([counts, *losses])


class PreparedEvaluation:
    """A plan with its last ops added; the template's graph must be the default one where it is made and runs."""

    def __init__(
        self,
        plan: EvaluationPlan,
        *,
        settings: SessionSettings,
        hooks: Sequence[v1.train.SessionRunHook],
        master: str = "",
        steps: int | None = None,
    ) -> None:
        self._plan, self._settings, self._master, self._steps = plan, settings, master, steps
        self._hooks = [*hooks, *plan.template.hooks]
        self._update_op, self._stop_hook, self._options = plan.update_op, plan.stop_hook, None
        self._feed_dict = {}
        loops = allows_loops(self._hooks)
        if loops:
            if plan.make_loop is not None:
                loop = plan.make_loop(not master)
                self._update_op, self._stop_hook = loop.all_done, loop.stop_hook
                self._options = loop.options
            elif plan.seconds_per_call is not None:
                self._feed_dict = {plan.seconds_per_call: SECONDS_PER_CALL}
        self._optimizing = (
            Optimizing.CONFIGURED if plan.make_loop and not loops else Optimizing.NOTHING
        )
        # The model's own.
        self.scaffold = plan.template.make_scaffold()
        # A saver of objects adds ops: once for all runs.
        self._scaffold = fitted_scaffold(_with_default_local_init(self.scaffold), None)
        self._values: Mapping[str, Any] | None = None
        self._kept: KeptSession | None = None

    @functools.cached_property
    def is_reusable(self) -> bool:
        """Whether it can run again: no user's hook or Python function may find the graph or itself changed."""
        return (
            not self._master
            and self._plan.session_creator is v1.train.ChiefSessionCreator
            and all(type(hook).__module__.startswith("tfx_tpu_trainer.") for hook in self._hooks)
            and not calls_python(self._plan.template.graph)
        )

    def keep_session(self) -> None:
        """Makes runs share one session, if nothing of a run stays in it."""
        if self.is_reusable and leaves_no_state(self._plan.template.graph):
            self._kept = KeptSession()

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()

    def run(
        self,
        checkpoint_path: str | None,
        *,
        values: Mapping[str, Any] | None = None,
        progress: Progress = _UNWATCHED,
    ) -> EvalResult:
        """Evaluates a checkpoint or, without one, initialized variables, of which some may have given values."""
        plan, settings, master = self._plan, self._settings, self._master
        if values is not None and self._values is None:
            self._scaffold = v1.train.Scaffold(
                init_fn=lambda _, session: self._load(session), copy_from_scaffold=self._scaffold
            )
        self._values = values
        # Checked before the work, since events are written at its end.
        check_writable(folder_of(settings))
        hooks = self._hooks
        if progress.is_watched:
            hooks = [*hooks, TellBatches(progress, steps=self._steps)]
        final_values = v1.train.FinalOpsHook((dict(plan.values), plan.sums.values))
        _logger.info("Starting evaluation at %s", time.strftime("%Y-%m-%dT%H:%M:%S"))
        started = time.monotonic()
        session = open_restored_session(
            settings=settings,
            master=master,
            scaffold=self._scaffold,
            checkpoint_path=checkpoint_path,
            hooks=[*hooks, final_values, self._stop_hook],
            optimizing=self._optimizing,
            session_creator=self._kept or plan.session_creator,
        )
        asks = not master and plan.session_creator is v1.train.ChiefSessionCreator
        watch = StallWatch(
            "Evaluation",
            unit="batch",
            timeout_secs=settings.stall_timeout_secs,
            steps_done=plan.sums.values["batches"] if asks else None,
            tasks=needed_tasks(settings, master),
        )
        calls = ReconnectingSession(session, watch)
        closing = session if self._kept else closed_in_thread(session, calls, master=master)
        # The values are read when the session ends.
        with run_errors_explained(plan.template), watch, closing:
            while not calls.should_stop():
                calls.run(self._update_op, feed_dict=self._feed_dict, options=self._options)
        seconds = time.monotonic() - started
        _logger.info("Inference Time : %0.5fs", seconds)
        _logger.info("Finished evaluation at %s", time.strftime("%Y-%m-%d-%H:%M:%S"))
        metrics, sums = final_values.final_ops_values
        if not sums["batches"]:
            raise ValueError(
                "evaluate() received no batch: the input is empty. Check the files that input_fn "
                "reads, and that a batch size with drop_remainder=True is not larger than the data."
            )
        rows = int(sums["rows"])
        result = EvalResult(
            metrics=metrics,
            loss_by_rows=float(sums["loss_times_rows"] / rows) if rows else float("nan"),
            num_examples=rows or None,
            global_step=int(metrics[GLOBAL_STEP]),
            checkpoint_path=checkpoint_path,
            seconds=seconds,
            num_batches=int(sums["batches"]),
        )
        progress.say(f"evaluate: {result}")
        return result

    def _load(self, session: v1.Session) -> None:
        assert self._values is not None
        for variable in v1.global_variables():
            if variable.name in self._values:
                # Fed into the initializer, which needs no new op; two may share a first value.
                initial = variable.initializer.inputs[1]
                session.run(variable.initializer, {initial: self._values[variable.name]})


def _with_default_local_init(scaffold: v1.train.Scaffold) -> v1.train.Scaffold:
    """Adds the initialization of metrics to the user's local_init_op."""
    if scaffold.local_init_op is None:
        return scaffold
    both = tf.group(scaffold.local_init_op, v1.train.Scaffold.default_local_init_op())
    return v1.train.Scaffold(local_init_op=both, copy_from_scaffold=scaffold)


def write_evaluation_events(result: EvalResult, *, output_dir: str) -> None:
    """Writes metrics, and the checkpoint's path, as summaries at the checkpoint's step."""
    # The first call for a folder writes the default graph too.
    step = result.global_step
    shown = ", ".join(f"{name} = {value}" for name, value in sorted(result.metrics.items()))
    _logger.info("Saving dict for global step %d: %s", step, shown)
    with converted_once(v1.get_default_graph()):
        writer = v1.summary.FileWriterCache.get(output_dir)
    writer.add_summary(_as_summary({**result.losses, **result.metrics}), step)
    if result.checkpoint_path:
        _logger.info(
            "Saving 'checkpoint_path' summary for global step %d: %s", step, result.checkpoint_path
        )
        writer.add_summary(_text_summary("checkpoint_path", result.checkpoint_path), step)
    writer.flush()


def _as_summary(metrics: Mapping[str, Any]) -> v1.Summary:
    summary = v1.Summary()
    for name, value in metrics.items():
        if name != "global_step" and value is not None:
            _add(summary, name, value)
    return summary


def _add(summary: v1.Summary, name: str, value: Any) -> None:
    if isinstance(value, (float, int, np.number)):
        summary.value.add(tag=name, simple_value=float(value))
    elif isinstance(value, bytes):
        _add_serialized(summary, name, value)
    elif isinstance(value, np.ndarray):
        summary.value.add(tag=name, tensor=tf.make_tensor_proto(value))
        _logger.info(
            "Summary for np.ndarray is not visible in Tensorboard by default: %s is one.", name
        )
    else:
        _logger.warning(
            "Skipping summary for %s, must be a float, np.float32, np.int64, np.int32 or int or "
            "np.ndarray or a serialized string of Summary; got a %s.",
            name,
            type(value).__name__,
        )


def _add_serialized(summary: v1.Summary, name: str, value: bytes) -> None:
    try:
        parsed = v1.Summary.FromString(value)
    except DecodeError:
        _logger.warning("Skipping summary for %s, cannot parse string to Summary.", name)
        return
    for index, part in enumerate(parsed.value):
        part.tag = f"{name}/{index}"
        summary.value.append(part)


def _text_summary(name: str, text: str) -> v1.Summary:
    summary = v1.Summary()
    part = summary.value.add(tag=name, tensor=tf.make_tensor_proto(text, dtype=tf.string))
    part.metadata.plugin_data.plugin_name = "text"
    return summary
