"""Hooks that end training: early, by the metrics of evaluations, or at a saved step."""

import operator
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.waiting import NOTICE_SECONDS
from tfx_tpu_trainer.estimator._argument_checks import check_is_number
from tfx_tpu_trainer.estimator._engine.checkpointing import checkpoints
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import whole_steps
from tfx_tpu_trainer.estimator._estimator import Estimator, check_is_estimator
from tfx_tpu_trainer.estimator.hooks._evaluations import read_eval_metrics

v1 = tf.compat.v1
_logger = tf.get_logger()

# Returns why training should end, from a metric's values by step, or `None` to continue.
_Question = Callable[[Sequence[tuple[int, float]]], str | None]


def make_early_stopping_hook(
    estimator: Estimator,
    should_stop_fn: Callable[[], bool],
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> v1.train.SessionRunHook:
    """Makes a hook that ends training; mirrors `tf.estimator.experimental.make_early_stopping_hook`.

    The chief calls should_stop_fn and shares the result with the other workers in a variable of the model. An evaluator
    in its own process continues.

    With `RunConfig(save_input_position=True)` and `run_every_steps`, should_stop_fn is called when
    the global step passes a multiple of `run_every_steps`, so a resumed training stops at the
    same step. Otherwise it is called in the first session call, as by the original, and then
    periodically.

    Examples:
        The third call returns `True`:

        >>> from tfx_tpu_trainer.estimator import BaselineRegressor, experimental, inputs
        >>> import numpy as np
        >>> rows = np.ones(4, np.float32)
        >>> input_fn = inputs.numpy_input_fn({"x": rows}, rows, num_epochs=None, shuffle=False)
        >>> estimator = BaselineRegressor(model_dir="runs/stopped")
        >>> answers = iter([False, False, True])
        >>> hook = experimental.make_early_stopping_hook(
        ...     estimator, lambda: next(answers), run_every_secs=None, run_every_steps=1
        ... )
        >>> estimator = estimator.train(input_fn, hooks=[hook], max_steps=1000)
        >>> print(estimator.get_variable_value("global_step"))
        3

    Args:
        estimator: The estimator that is trained.
        should_stop_fn: Takes no arguments; returns whether training should end.
        run_every_secs: Seconds between calls. Defaults to 60; must be `None` with run_every_steps.
        run_every_steps: Steps between calls. Defaults to `None`.

    Returns:
        The hook.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If both intervals are set.
    """
    check_is_estimator(estimator)
    if not callable(should_stop_fn):
        raise TypeError(f"`should_stop_fn` must be callable; got {should_stop_fn!r}.")
    if run_every_secs is not None and run_every_steps is not None:
        raise ValueError(
            "Only one of `run_every_secs` and `run_every_steps` must be set; got "
            f"{run_every_secs} and {run_every_steps}. Set the other one to None."
        )
    check_is_number("run_every_secs", run_every_secs)
    check_is_number("run_every_steps", run_every_steps)
    every = whole_steps(run_every_steps)
    if estimator.config.is_chief and every and estimator.config.save_input_position:
        alone = estimator.config.num_worker_replicas <= 1
        return _StopAtMultiplesHook(should_stop_fn, every, alone=alone)
    if estimator.config.is_chief:
        return _StopHook(should_stop_fn, every_secs=run_every_secs, every_steps=run_every_steps)
    return _FollowChiefHook()


def stop_if_higher_hook(
    estimator: Estimator,
    metric_name: str,
    threshold: float,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> v1.train.SessionRunHook:
    """Ends training when a metric is above a threshold; mirrors the original of that name.

    Args:
        estimator: The estimator that is trained.
        metric_name: The metric, as `evaluate` names it.
        threshold: The bound.
        eval_dir: Folder of the evaluation's events. Defaults to `estimator.eval_dir()`.
        min_steps: Evaluations of earlier steps do not count. Defaults to 0.
        run_every_secs: Seconds between checks. Defaults to 60.
        run_every_steps: Steps between checks. Defaults to `None`.

    Returns:
        The hook.
    """
    question = _crossed(metric_name, threshold, operator.gt, "greater than")
    should_stop = _asked(question, estimator, metric_name, eval_dir, min_steps)
    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


def stop_if_lower_hook(
    estimator: Estimator,
    metric_name: str,
    threshold: float,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> v1.train.SessionRunHook:
    """Ends training when a metric is below a threshold; arguments as `stop_if_higher_hook`."""
    question = _crossed(metric_name, threshold, operator.lt, "less than")
    should_stop = _asked(question, estimator, metric_name, eval_dir, min_steps)
    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


def stop_if_no_increase_hook(
    estimator: Estimator,
    metric_name: str,
    max_steps_without_increase: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> v1.train.SessionRunHook:
    """Ends training when a metric has not increased for some steps; mirrors the original.

    Args:
        estimator: The estimator that is trained.
        metric_name: The metric, as `evaluate` names it.
        max_steps_without_increase: Steps after the best evaluation.
        eval_dir: Folder of the evaluation's events. Defaults to `estimator.eval_dir()`.
        min_steps: Evaluations of earlier steps do not count. Defaults to 0.
        run_every_secs: Seconds between checks. Defaults to 60.
        run_every_steps: Steps between checks. Defaults to `None`.

    Returns:
        The hook.
    """
    question = _stalled(metric_name, max_steps_without_increase, operator.gt, "increase")
    should_stop = _asked(question, estimator, metric_name, eval_dir, min_steps)
    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


def stop_if_no_decrease_hook(
    estimator: Estimator,
    metric_name: str,
    max_steps_without_decrease: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> v1.train.SessionRunHook:
    """Ends training when a metric has not decreased for some steps; see the one for increase."""
    question = _stalled(metric_name, max_steps_without_decrease, operator.lt, "decrease")
    should_stop = _asked(question, estimator, metric_name, eval_dir, min_steps)
    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


def _crossed(
    metric_name: str, threshold: float, is_past: Callable[[float, float], bool], words: str
) -> _Question:
    """Returns a condition that holds once the metric has passed the threshold."""
    check_is_number("threshold", threshold)

    def question(values: Sequence[tuple[int, float]]) -> str | None:
        for step, value in values:
            if is_past(value, threshold):
                return (
                    f'At step {step}, metric "{metric_name}" has value {value} which is {words} the '
                    f"configured threshold ({threshold}) for early stopping."
                )
        return None

    return question


def _stalled(
    metric_name: str, max_steps: int, is_better: Callable[[float, float], bool], word: str
) -> _Question:
    """Returns a condition that holds when the metric's best value was some steps ago."""
    check_is_number(f"max_steps_without_{word}", max_steps)

    def question(values: Sequence[tuple[int, float]]) -> str | None:
        best: tuple[int, float] | None = None
        for step, value in values:
            if best is None or is_better(value, best[1]):
                best = (step, value)
            # Checked after each evaluation: a metric that stalled once and then improved still ends
            # the training, as in the original.
            if step - best[0] >= max_steps:
                return (
                    f'No {word} in metric "{metric_name}" for {step - best[0]} steps, which is '
                    f"greater than or equal to max steps ({max_steps}) configured for early stopping."
                )
        return None

    return question


def _asked(
    question: _Question,
    estimator: Estimator,
    metric_name: str,
    eval_dir: str | None,
    min_steps: int,
) -> Callable[[], bool]:
    """Returns a should_stop_fn that checks all evaluations so far, and reads them at each call."""
    check_is_number("min_steps", min_steps)

    def should_stop() -> bool:
        values = []
        for step, metrics in read_eval_metrics(eval_dir or estimator.eval_dir()).items():
            if step < min_steps:
                continue
            if metric_name not in metrics:
                raise ValueError(
                    f"Early stopping watches the metric {metric_name!r}, which the evaluation of "
                    f"step {step} lacks; it has: {sorted(metrics)}."
                )
            values.append((step, metrics[metric_name]))
        reason = question(values)
        if reason is not None:
            _logger.info("%s", reason)
        return reason is not None

    return should_stop


def _stop_variable() -> tf.Variable:
    """Makes the variable that signals the workers, under the original's name."""
    with v1.variable_scope("signal_early_stopping", reuse=v1.AUTO_REUSE):
        return v1.get_variable(
            "STOP",
            shape=[],
            dtype=tf.bool,
            initializer=v1.zeros_initializer(),
            collections=[v1.GraphKeys.GLOBAL_VARIABLES],
            trainable=False,
        )


class _AskingHook(v1.train.SessionRunHook):
    """Calls should_stop_fn and signals the workers."""

    def __init__(self, should_stop_fn: Callable[[], bool]) -> None:
        self._should_stop_fn = should_stop_fn

    def begin(self) -> None:
        self._global_step = v1.train.get_global_step()
        self._stop = _stop_variable().assign(True, read_value=False)

    def _is_time_to_stop(self, session: v1.Session, step: int) -> bool:
        if not self._should_stop_fn():
            return False
        _logger.info("Requesting early stopping at global step %d", step)
        session.run(self._stop)
        return True


class _StopAtMultiplesHook(_AskingHook):
    """Calls should_stop_fn when the global step passes a multiple of a period."""

    # Every 100 steps, with 40 steps in a session call: called after steps 120, 200, 320, ... A
    # training that is killed at 280 and resumes from a checkpoint of 240 calls at 320 again. A timer
    # that starts at the session's first step would call at 280, and might stop at another step.

    def __init__(
        self, should_stop_fn: Callable[[], bool], every_steps: int, *, alone: bool
    ) -> None:
        super().__init__(should_stop_fn)
        self._every_steps = every_steps
        self._alone = alone

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        self._step = int(session.run(self._global_step))
        # Resumed at a multiple: the previous session ended there, either before the call or because of its result. In
        # both cases a call is due now.
        self._is_due = self._step > 0 and self._step % self._every_steps == 0
        # Only with one worker: others that have started would wait for this worker's part of their next step. With
        # several workers, the call follows the first step.
        if self._is_due and self._alone and self._is_time_to_stop(session, self._step):
            coord.request_stop()

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        del run_values
        # A separate call reads the step: fetched with the train op, it could be the one before or
        # after.
        former, self._step = self._step, int(run_context.session.run(self._global_step))
        passed = self._step // self._every_steps > former // self._every_steps
        is_due, self._is_due = passed or (self._is_due and not self._alone), False
        if is_due and self._is_time_to_stop(run_context.session, self._step):
            run_context.request_stop()


class _StopHook(_AskingHook):
    """Calls should_stop_fn in the first session call, and then periodically."""

    def __init__(
        self,
        should_stop_fn: Callable[[], bool],
        *,
        every_secs: float | None,
        every_steps: int | None,
    ) -> None:
        super().__init__(should_stop_fn)
        self._timer = v1.train.SecondOrStepTimer(every_secs=every_secs, every_steps=every_steps)

    def begin(self) -> None:
        super().begin()
        # One hook may serve two calls of train. Without the reset, the timer of the second may have
        # triggered at the step of its first session call already.
        self._timer.reset()

    def before_run(self, run_context: v1.train.SessionRunContext) -> Any:
        del run_context
        return v1.train.SessionRunArgs(self._global_step)

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        step = run_values.results
        if not self._timer.should_trigger_for_step(step):
            return
        self._timer.update_last_triggered_step(step)
        if self._is_time_to_stop(run_context.session, step):
            run_context.request_stop()


class _FollowChiefHook(v1.train.SessionRunHook):
    """Stops when the chief requests it."""

    def begin(self) -> None:
        self._stop = _stop_variable()

    def before_run(self, run_context: v1.train.SessionRunContext) -> Any:
        del run_context
        return v1.train.SessionRunArgs(self._stop)

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        if run_values.results:
            _logger.info("Early stopping requested, suspending run.")
            run_context.request_stop()


def make_stop_at_checkpoint_step_hook(
    estimator: Estimator, last_step: int, wait_after_file_check_secs: float = 30
) -> v1.train.SessionRunHook:
    """Makes a hook that stops at a step; mirrors the original of that name.

    The chief stops at the step; a worker continues until the chief has written its checkpoint.

    Args:
        estimator: The estimator that is trained.
        last_step: Global step to stop at.
        wait_after_file_check_secs: Seconds between a worker's checks of the model folder. Defaults to
            30.

    Returns:
        The hook.

    Raises:
        ValueError: If last_step is `None`.
        TypeError: If an argument is not a number.
    """
    if last_step is None:
        raise ValueError("last_step must be specified; got None.")
    check_is_number("last_step", last_step)
    check_is_number("wait_after_file_check_secs", wait_after_file_check_secs)
    if estimator.config.is_chief:
        return v1.train.StopAtStepHook(last_step=last_step)
    return StopAtCheckpointStepHook(estimator.model_dir, last_step, wait_after_file_check_secs)


class StopAtCheckpointStepHook(v1.train.SessionRunHook):
    """Stops when the latest checkpoint of a folder has reached a step."""

    def __init__(
        self,
        model_dir: str,
        last_step: int,
        wait_after_file_check_secs: float,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Keeps the arguments of `make_stop_at_checkpoint_step_hook`."""
        self._model_dir = model_dir
        self._last_step = last_step
        self._wait_secs = wait_after_file_check_secs
        self._sleep = sleep
        self._said: float | None = None

    def begin(self) -> None:
        """Finds the global step."""
        self._global_step = v1.train.get_global_step()
        if self._global_step is None:
            raise RuntimeError(
                "Global step should be created to use StopAtCheckpointStepHook. Call "
                "tf.compat.v1.train.get_or_create_global_step() first."
            )

    def before_run(self, run_context: v1.train.SessionRunContext) -> Any:
        """Fetches the global step."""
        del run_context
        return v1.train.SessionRunArgs(self._global_step)

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Stops, or waits for the checkpoint."""
        # The value may have been read before the step's update.
        if run_values.results + 1 < self._last_step:
            return
        if checkpoints.global_step_of(self._model_dir) >= self._last_step:
            run_context.request_stop()
        else:
            self._say()
            self._sleep(self._wait_secs)

    def _say(self) -> None:
        now = time.monotonic()
        if self._said is None or now - self._said >= NOTICE_SECONDS:
            self._said = now
            _logger.warning(
                "Waiting for a checkpoint of step %d in %s, which the chief writes. This worker "
                "runs one step every %g s until it exists (wait_after_file_check_secs).",
                self._last_step,
                self._model_dir,
                self._wait_secs,
            )
