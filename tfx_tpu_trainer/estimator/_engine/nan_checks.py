"""Finds a NaN in the loss after a step, or in the variables after a loop of steps, and advises what to do."""

from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


class NanLossError(v1.train.NanLossDuringTrainingError):
    """Training stopped because the loss became NaN; the last good checkpoint is kept."""

    def __init__(self, *, step: int, checkpoint: str | None):
        """Names the step and the checkpoint to resume from.

        Args:
            step: Global step after the step whose loss was NaN.
            checkpoint: Path of the latest checkpoint, or `None`.
        """
        super().__init__(step, checkpoint)
        self.step = step
        self.checkpoint = checkpoint

    def __str__(self) -> str:
        """Names the step and the checkpoint, with advice."""
        return (
            f"NaN loss during training, {_advice(f'at global step {self.step}', self.checkpoint)}"
        )


class StopAtNanHook(v1.train.SessionRunHook):
    """Raises `NanLossError` after a step whose loss is NaN; TensorFlow's hook names no step or checkpoint."""

    def __init__(self, loss: tf.Tensor, *, model_dir: str):
        self._loss = loss
        self._model_dir = model_dir

    def begin(self) -> None:
        self._global_step = v1.train.get_global_step()

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Keeps the session, to read the global step after a failure."""
        self._session = session

    def position(self) -> str:
        """Returns where training stopped at a NaN that was found after a loop, while the session is open."""
        step = int(self._session.run(self._global_step))
        where = f"in the steps that ended at global step {step}"
        return _advice(where, tf.train.latest_checkpoint(self._model_dir))

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs:
        return v1.train.SessionRunArgs(self._loss)

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        if not np.isnan(run_values.results):
            return
        step = run_context.session.run(self._global_step)
        raise NanLossError(step=int(step), checkpoint=tf.train.latest_checkpoint(self._model_dir))


def _advice(where: str, checkpoint: str | None) -> str:
    kept = f"the last checkpoint is {checkpoint}" if checkpoint else "none was saved"
    return (
        f"{where}; {kept}. Lower the learning rate, clip the gradients, or look for NaN in the "
        "features and for log(0) in the loss."
    )


def fail_at_nan_after(run: Any) -> tf.Operation:
    """Makes an op that runs something and then checks every trainable variable, in the original's words."""
    # A loop in a TPU's program can't stop at a NaN, so its variables are checked after the loop.
    with tf.control_dependencies([run]):
        return tf.group(*_checks(), run)


class VariableChecksHook(v1.train.SessionRunHook):
    """Checks the trainable variables when the session is made; evaluation and prediction change none."""

    def begin(self) -> None:
        """Makes the op, before the graph is finalized."""
        self._check = tf.group(*_checks())

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Fails with InvalidArgumentError, "Gradient for <variable> is NaN"."""
        session.run(self._check)


def _checks() -> list[tf.Tensor]:
    return [
        tf.debugging.check_numerics(
            variable.read_value(), f"Gradient for {variable.op.name} is NaN"
        )
        for variable in v1.trainable_variables()
        if variable.dtype.is_floating
    ]
