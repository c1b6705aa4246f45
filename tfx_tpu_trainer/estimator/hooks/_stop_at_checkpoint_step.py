"""A hook that ends a worker's training when the last step is on disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.waiting import NOTICE_SECONDS
from tfx_tpu_trainer.estimator._engine.checkpointing import checkpoints
from tfx_tpu_trainer.estimator._estimator import Estimator
from tfx_tpu_trainer.estimator._number_checks import check_is_number

v1 = tf.compat.v1
_logger = tf.get_logger()


def make_stop_at_checkpoint_step_hook(
    estimator: Estimator, last_step: int, wait_after_file_check_secs: float = 30
) -> v1.train.SessionRunHook:
    """Makes a hook that stops at a step; mirrors the original of that name.

    The chief stops at the step; a worker continues until a checkpoint of it is written, so that nobody leaves before
    the chief has saved.

    Args:
        estimator: The estimator that is trained.
        last_step: Global step to stop at.
        wait_after_file_check_secs: Seconds that a worker waits between two looks at the model
            folder. Defaults to 30.

    Returns:
        The hook.

    Raises:
        ValueError: If there is no last step.
        TypeError: If a number is none.
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
                "tf.compat.v1.train.get_or_create_global_step() before."
            )

    def before_run(self, run_context: v1.train.SessionRunContext) -> Any:
        """Asks for the global step."""
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
