"""Saves the position of a training input in separate checkpoints, as `tf.data.experimental` does."""

import os
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private

v1 = tf.compat.v1
_logger = tf.get_logger()

_POLICIES = ("warn", "ignore", "fail")


class CheckpointInputPipelineHook(v1.train.SessionRunHook):
    """Saves the input's position as often as checkpoints; mirrors `tf.data.experimental`'s hook.

    Each session resumes from the latest position, even if that is not its checkpoint's. So a training that was killed
    between a position and its checkpoint, or continued without the hook, reads other rows than an uninterrupted one.
    `RunConfig(save_input_position=True)` has no gaps.

    Examples:
        >>> from tfx_tpu_trainer.estimator import BaselineRegressor
        >>> from tfx_tpu_trainer.estimator.hooks import CheckpointInputPipelineHook
        >>> import glob
        >>> import tensorflow as tf
        >>> def input_fn():
        ...     return tf.data.Dataset.from_tensors(({"x": [1.0]}, [2.0])).repeat()
        >>> estimator = BaselineRegressor(model_dir="runs/position")
        >>> hook = CheckpointInputPipelineHook(estimator)
        >>> estimator = estimator.train(input_fn, hooks=[hook], steps=3)
        >>> sorted(glob.glob("runs/position/input.ckpt-*.index"))[-1]
        'runs/position/input.ckpt-3.index'
    """

    def __init__(self, estimator: Any, external_state_policy: str | None = None) -> None:
        """Takes folder and interval from an estimator.

        Args:
            estimator: The estimator that trains. Positions are `input.ckpt-*` in its model_dir, or
                `input_<task type>_<task>.ckpt-*` if several tasks train.
            external_state_policy: How to treat random ops and Python code in the input, whose state
                can't be saved: `"fail"`, `"warn"` or `"ignore"`. Defaults to `None`: `"fail"`.

        Raises:
            ValueError: If the policy is none of these, or the estimator saves no checkpoints.
        """
        policy = external_state_policy or "fail"
        if policy not in _POLICIES:
            raise ValueError(
                "Invalid `ExternalStatePolicy.` Supported values include 'warn', 'ignore', and "
                f"'fail.' Received {external_state_policy}."
            )
        config = estimator.config
        name = "input"
        if config.num_worker_replicas > 1:
            name += f"_{config.task_type}_{config.task_id}"
        # The numbers of tf.data's ExternalStatePolicy, in the order of `_POLICIES`.
        self._policy = _POLICIES.index(policy)
        self._folder = estimator.model_dir
        self._path = os.path.join(self._folder, f"{name}.ckpt")
        # The file that names the latest position; the model's own is called `checkpoint`.
        self._state_file = f"checkpoint_{name}"
        self._timer = v1.train.SecondOrStepTimer(
            every_secs=config.save_checkpoints_secs, every_steps=config.save_checkpoints_steps
        )
        self._begun = False

    def begin(self) -> None:
        """Makes the saver of the default graph's iterators."""
        self._timer.reset()
        self._global_step = v1.train.get_global_step()
        saveables = tf_private.saveables_of_iterators(policy=self._policy)
        self._saver = v1.train.Saver(saveables, sharded=True) if saveables else None
        if self._saver is None:
            _logger.warning(
                "CheckpointInputPipelineHook saves nothing: no tf.data iterator of this session "
                "draws the input."
            )

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Waits for the iterators to be initialized, which other hooks may do."""
        del session, coord
        self._begun = False

    def before_run(self, run_context: v1.train.SessionRunContext) -> None:
        """Restores the latest position before the first step, or saves the first one."""
        if self._saver is None or self._begun:
            return
        self._begun = True
        session = run_context.session
        latest = tf.train.latest_checkpoint(self._folder, self._state_file)
        if latest:
            self._saver.restore(session, latest)
        else:
            self._save(session, self._step(session))

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Saves when it is due."""
        del run_values
        if self._saver is None:
            return
        step = self._step(run_context.session)
        if self._timer.should_trigger_for_step(step):
            self._save(run_context.session, step)

    def end(self, session: v1.Session) -> None:
        """Saves the last position."""
        if self._saver is None:
            return
        step = self._step(session)
        if step != self._timer.last_triggered_step():
            self._save(session, step)

    def _save(self, session: v1.Session, step: int) -> None:
        self._timer.update_last_triggered_step(step)
        assert self._saver is not None
        self._saver.save(session, self._path, global_step=step, latest_filename=self._state_file)

    def _step(self, session: v1.Session) -> int:
        return int(session.run(self._global_step))
