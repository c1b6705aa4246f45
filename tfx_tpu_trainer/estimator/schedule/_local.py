"""Trains and evaluates in turn in one process, by a `TrainSpec` and an `EvalSpec`."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_tpu_trainer._support.progress import duration, expecting
from tfx_tpu_trainer.estimator import _estimator_spec
from tfx_tpu_trainer.estimator._argument_checks import check_positive, holds
from tfx_tpu_trainer.estimator._calls import check_listeners
from tfx_tpu_trainer.estimator._engine.evaluating.evaluation_plan import GLOBAL_STEP
from tfx_tpu_trainer.estimator._user_calls import check_input_fn
from tfx_tpu_trainer.estimator.hooks._evaluations import read_eval_metrics
from tfx_tpu_trainer.estimator.schedule._exporters import Exporter

v1 = tf.compat.v1
_logger = tf.get_logger()

_HOOKS = "All hooks must be `SessionRunHook` instances"
_LISTENERS = "All saving_listeners must be `CheckpointSaverListener` instances"
_WARNING_SECONDS = 600


class _TrainFields(NamedTuple):
    input_fn: Callable[..., Any]
    max_steps: int | None
    hooks: tuple[v1.train.SessionRunHook, ...]
    saving_listeners: tuple[v1.train.CheckpointSaverListener, ...]


class TrainSpec(_TrainFields):
    """How to train; mirrors `tf.estimator.TrainSpec`.

    Examples:
        >>> from tfx_tpu_trainer.estimator import TrainSpec, inputs
        >>> import numpy as np
        >>> rows = np.arange(8.0)
        >>> input_fn = inputs.numpy_input_fn({"x": rows}, 2 * rows, num_epochs=None, shuffle=True)
        >>> spec = TrainSpec(input_fn, max_steps=1000)
        >>> spec.max_steps, spec.hooks
        (1000, ())
    """

    __slots__ = ()

    def __new__(
        cls,
        input_fn: Callable[..., Any],
        max_steps: int | None = None,
        hooks: Iterable[v1.train.SessionRunHook] | None = None,
        saving_listeners: Iterable[v1.train.CheckpointSaverListener] | None = None,
    ) -> TrainSpec:
        """Checks the arguments."""
        check_input_fn(input_fn)
        check_positive("max_steps", max_steps)
        return super().__new__(
            cls,
            input_fn,
            max_steps,
            _estimator_spec.check_hooks(hooks, message=_HOOKS),
            check_listeners(saving_listeners, message=_LISTENERS),
        )


class _EvalFields(NamedTuple):
    input_fn: Callable[..., Any]
    steps: int | None
    name: str | None
    hooks: tuple[v1.train.SessionRunHook, ...]
    exporters: tuple[Exporter, ...]
    start_delay_secs: float
    throttle_secs: float


class EvalSpec(_EvalFields):
    """How to evaluate and what to export; mirrors `tf.estimator.EvalSpec`.

    Examples:
        All rows, after each checkpoint:

        >>> from tfx_tpu_trainer.estimator import EvalSpec, inputs
        >>> import numpy as np
        >>> rows = np.arange(8.0)
        >>> input_fn = inputs.numpy_input_fn({"x": rows}, 2 * rows, shuffle=False)
        >>> spec = EvalSpec(input_fn, steps=None, throttle_secs=0)
        >>> spec.steps, spec.throttle_secs, spec.exporters
        (None, 0, ())
    """

    __slots__ = ()

    def __new__(
        cls,
        input_fn: Callable[..., Any],
        steps: int | None = 100,
        name: str | None = None,
        hooks: Iterable[v1.train.SessionRunHook] | None = None,
        exporters: Exporter | Iterable[Exporter] | None = None,
        start_delay_secs: float = 120,
        throttle_secs: float = 600,
    ) -> EvalSpec:
        """Checks the arguments."""
        check_input_fn(input_fn)
        check_positive("steps", steps)
        if name is not None and not isinstance(name, str):
            raise TypeError(f"`name` must be string, given: {name!r}.")
        for delay_name, delay in (
            ("start_delay_secs", start_delay_secs),
            ("throttle_secs", throttle_secs),
        ):
            if not holds(delay_name, delay, lambda secs: secs >= 0):
                raise ValueError(f"Must specify {delay_name} >= 0, given: {delay}")
        return super().__new__(
            cls,
            input_fn,
            steps,
            name,
            _estimator_spec.check_hooks(hooks, message=_HOOKS),
            _check_exporters(exporters),
            start_delay_secs,
            throttle_secs,
        )


def _check_exporters(exporters: Any) -> tuple[Exporter, ...]:
    if not exporters:
        return ()
    several = [exporters] if isinstance(exporters, Exporter) else exporters
    if not isinstance(several, Iterable) or isinstance(several, str):
        raise TypeError(
            f"`exporters` must be an Exporter, an iterable of Exporter, or `None`; got {exporters!r}."
        )
    several = tuple(several)
    for exporter in several:
        if not isinstance(exporter, Exporter):
            raise TypeError(
                "`exporters` must be an Exporter, an iterable of Exporter, or `None`; got "
                f"{exporter!r} among them."
            )
    names = [exporter.name for exporter in several]
    for name in names:
        if not name:
            raise ValueError(
                f"An Exporter cannot have a name that is `None` or empty. All exporter names: {names}"
            )
        if not isinstance(name, str):
            raise ValueError(f"An Exporter must have a string name. Given: {name!r}")
    if len(set(names)) < len(names):
        raise ValueError(
            "`exporters` must have unique names. Such a name cannot be `None`. All exporter "
            f"names: {names}"
        )
    return several


@dataclasses.dataclass(frozen=True)
class EvaluatedCheckpoint:
    """One evaluation of `train_and_evaluate`.

    Attributes:
        checkpoint_path: The checkpoint.
        metrics: The result of `evaluate`.
        exports: The results of the exporters, in their order.
    """

    checkpoint_path: str
    metrics: Mapping[str, Any]
    exports: list[bytes | None]

    @property
    def global_step(self) -> int:
        """Global step of the checkpoint."""
        return int(self.metrics[GLOBAL_STEP])


class EvaluationListener:
    """May stop `train_and_evaluate` before or after an evaluation."""

    def before_eval(self) -> bool:
        """Returns whether to continue; `False` skips the evaluation and stops."""
        return True

    def after_eval(self, evaluated: EvaluatedCheckpoint | None) -> bool:
        """Returns whether to continue.

        Args:
            evaluated: The evaluation; `None` if there was no new checkpoint.
        """
        del evaluated
        return True


class CheckpointEvaluator:
    """Evaluates each checkpoint once."""

    def __init__(
        self,
        estimator: Any,
        eval_spec: EvalSpec,
        *,
        max_steps: int | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepares evaluations of `estimator`; the one of global step `max_steps` is the last."""
        self._estimator = estimator
        self._eval_spec = eval_spec
        self._max_steps = max_steps
        self._clock = clock
        self._seen: str | None = None
        self._warned_at: float | None = None

    def awaited(self) -> str | None:
        """Describes the awaited checkpoint; `None` if there is one to evaluate."""
        path = self._estimator.latest_checkpoint()
        if path and path != self._seen:
            return None
        after = f"after {os.path.basename(path)}" if path else "the first one"
        return f"a new checkpoint in {self._estimator.model_dir}, {after}"

    def evaluate_newest(self) -> EvaluatedCheckpoint | None:
        """Evaluates the newest checkpoint and calls the exporters.

        Returns:
            The evaluation, or `None` if there is no new checkpoint.

        Raises:
            TypeError: If `evaluate` did not return a dict.
            ValueError: If the dict is empty, or lacks the global step.
        """
        path = self._estimator.latest_checkpoint()
        if not path:
            self._warn(
                "Estimator is not trained yet. Will start an evaluation when a checkpoint is ready."
            )
            return None
        if path == self._seen:
            self._warn(
                "No new checkpoint ready for evaluation. Skip the current evaluation pass: %s was "
                "evaluated.",
                path,
            )
            return None
        spec = self._eval_spec
        metrics = _check_metrics(
            self._estimator.evaluate(
                input_fn=spec.input_fn,
                steps=spec.steps,
                hooks=list(spec.hooks),
                checkpoint_path=path,
                name=spec.name,
            )
        )
        final = self._max_steps is not None and int(metrics[GLOBAL_STEP]) >= self._max_steps
        exports = [
            exporter.export(
                estimator=self._estimator,
                export_path=os.path.join(self._estimator.model_dir, "export", exporter.name),
                checkpoint_path=path,
                eval_result=metrics,
                is_the_final_export=final,
            )
            for exporter in spec.exporters
        ]
        if final:
            _logger.debug("Calling exporter with the `is_the_final_export=True`.")
        self._seen, self._warned_at = path, None
        return EvaluatedCheckpoint(path, metrics, exports)

    def _warn(self, message: str, *values: Any) -> None:
        """Warns at most once in ten minutes."""
        now = self._clock()
        if self._warned_at is None or now - self._warned_at > _WARNING_SECONDS:
            _logger.warning(message, *values)
            self._warned_at = now


def _check_metrics(metrics: Any) -> Mapping[str, Any]:
    if not metrics:
        raise ValueError(
            f"`Estimator.evaluate` should never return empty metrics; got {metrics!r}."
        )
    if not isinstance(metrics, Mapping):
        raise TypeError(f"`Estimator.evaluate` should return dict. Given {type(metrics)}.")
    if GLOBAL_STEP not in metrics:
        raise ValueError(
            f"`Estimator.evaluate` result should have `{GLOBAL_STEP}` in result. Given {metrics}"
        )
    return metrics


def run_local(
    estimator: Any,
    train_spec: TrainSpec,
    eval_spec: EvalSpec,
    *,
    listener: EvaluationListener | None = None,
) -> tuple[Mapping[str, Any] | None, list[bytes | None] | None]:
    """Trains, and evaluates after each checkpoint except the first."""
    # With `RunConfig(save_input_position=True)`, a resumed training also evaluates its first checkpoint if the previous
    # training ended without that evaluation.
    config = estimator.config
    _logger.info(
        "Start train and evaluate loop. The evaluate will happen after every checkpoint. "
        "Checkpoint frequency is determined based on RunConfig arguments: save_checkpoints_steps "
        "%s or save_checkpoints_secs %s.",
        config.save_checkpoints_steps,
        config.save_checkpoints_secs,
    )

    def is_missing(step: int) -> bool:
        # Without the input's position, a resumed training differs anyway, so it behaves like the original.
        goes_on = step > 0 and config.save_input_position
        return goes_on and step not in read_eval_metrics(estimator.eval_dir(eval_spec.name))

    evaluations = EvaluateAfterSaving(
        CheckpointEvaluator(estimator, eval_spec, max_steps=train_spec.max_steps),
        throttle_secs=eval_spec.throttle_secs,
        is_missing=is_missing,
        listener=listener,
    )
    with expecting(next_evaluation=evaluations.next_in_words):
        estimator.train(
            input_fn=train_spec.input_fn,
            max_steps=train_spec.max_steps,
            hooks=list(train_spec.hooks),
            saving_listeners=[*train_spec.saving_listeners, evaluations],
        )
    last = evaluations.last
    return (None, None) if last is None else (last.metrics, last.exports)


class EvaluateAfterSaving(v1.train.CheckpointSaverListener):
    """Evaluates each saved checkpoint, unless the last evaluation started too recently."""

    def __init__(
        self,
        evaluator: CheckpointEvaluator,
        *,
        throttle_secs: float,
        is_missing: Callable[[int], bool] = lambda step: False,
        listener: EvaluationListener | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._evaluator = evaluator
        self._throttle_secs = throttle_secs
        self._is_missing = is_missing
        self._listener = listener or EvaluationListener()
        self._clock = clock
        self._started: float | None = None
        self._evaluated_step: int | None = None
        self._first = True
        self.last: EvaluatedCheckpoint | None = None

    def next_in_words(self) -> str:
        """Describes when the next evaluation is due, after the words "next evaluation"."""
        left = 0.0
        if self._started is not None:
            left = self._started + self._throttle_secs - self._clock()
        if left <= 0:
            return "with the next checkpoint"
        return f"with a checkpoint in {duration(left)} or later"

    def begin(self) -> None:
        """Starts again: the first checkpoint is untrained, or was evaluated before."""
        self._first = True

    def after_save(self, session: v1.Session, global_step_value: int) -> bool | None:
        """Evaluates; returns `True` to stop training."""
        del session
        # Training saves before its first step: an untrained model, or the last checkpoint of the previous run, which
        # was evaluated unless the run was killed in between.
        if self._first:
            self._first = False
            if not self._is_missing(int(global_step_value)):
                return None
        if not self._listener.before_eval():
            _logger.info(
                "Exiting training and evaluation loop, as requested by "
                "_ContinuousEvalListener.before_eval."
            )
            return True
        now = self._clock()
        if self._started is not None and now - self._started < self._throttle_secs:
            _logger.info(
                "Skip the current checkpoint eval due to throttle secs (%s secs): %d secs left.",
                self._throttle_secs,
                self._throttle_secs - (now - self._started),
            )
            return None
        self._evaluate(global_step_value, now)
        if not self._listener.after_eval(self.last):
            _logger.info("Exiting evaluation, as requested by _ContinuousEvalListener.after_eval.")
            return True
        return None

    def end(self, session: v1.Session, global_step_value: int) -> None:
        """Evaluates the last checkpoint, if that is not done yet."""
        del session
        # The last save may have been throttled away; the final exporters need its evaluation.
        if global_step_value != self._evaluated_step and self._listener.before_eval():
            self._evaluate(global_step_value, self._clock())
            self._listener.after_eval(self.last)

    def _evaluate(self, step: int, now: float) -> None:
        # Recorded before, since the throttle counts from the start of an evaluation, as in the original.
        self._started, self._evaluated_step = now, step
        evaluated = self._evaluator.evaluate_newest()
        if evaluated is None:
            raise RuntimeError(
                f"There was no new checkpoint after the training reached step {step}: another "
                "process removes or replaces the checkpoints in model_dir; give each training its "
                "own."
            )
        self.last = evaluated
