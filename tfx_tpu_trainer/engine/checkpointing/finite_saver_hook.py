"""Saves checkpoints, but never one of a step whose loss is NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


class FiniteSaverHook(v1.train.CheckpointSaverHook):
    """A CheckpointSaverHook that passes over a step whose loss is NaN.

    The saver runs before the hook that stops at a NaN; without this, the last checkpoint could
    be the very one that must not be gone on from.
    """

    def __init__(self, checkpoint_dir: str, *, loss: tf.Tensor, **kwargs: Any) -> None:
        """Watches a loss.

        Args:
            checkpoint_dir: Folder of the checkpoints.
            loss: Scalar tensor.
            **kwargs: Arguments of `tf.compat.v1.train.CheckpointSaverHook`.
        """
        super().__init__(checkpoint_dir, **kwargs)
        self._loss = loss

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs:
        """Adds the loss to what the hook fetches."""
        fetches = super().before_run(run_context).fetches
        return v1.train.SessionRunArgs({"step": fetches, "loss": self._loss})

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Saves when it is due, unless the loss is NaN."""
        if not np.isnan(run_values.results["loss"]):
            super().after_run(run_context, run_values._replace(results=run_values.results["step"]))
