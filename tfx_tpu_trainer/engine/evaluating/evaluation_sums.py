"""What every evaluation counts beside the model's own metrics."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

v1 = tf.compat.v1

_NAMES = ("batches", "rows", "loss_times_rows")


class EvaluationSums:
    """Sums of one evaluation, in local variables: batches are many and float32 is short.

    Attributes:
        values: Name -> final value, to be read after the last batch.
    """

    def __init__(self) -> None:
        with v1.variable_scope("evaluation_sums"):
            self._totals = {name: _local_variable(name, tf.float64) for name in _NAMES}
        self.values: dict[str, tf.Tensor] = {
            name: total.read_value() for name, total in self._totals.items()
        }

    def loss_by_rows(self, dtype: tf.DType) -> tf.Tensor:
        """Returns the mean of the batch losses, each weighing by its rows."""
        return tf.cast(self.values["loss_times_rows"] / self.values["rows"], dtype)

    def add(self, *, loss: tf.Tensor, rows: tf.Tensor | None) -> list[Any]:
        """Counts a batch.

        The updates wait for the loss, so that the run that finds the input at its end counts
        nothing.

        Args:
            loss: The batch's loss.
            rows: The batch's number of rows; `None` where it has no axis to count.

        Returns:
            The update ops.
        """
        weight = tf.cast(0 if rows is None else rows, tf.float64)
        addends = {
            "batches": tf.constant(1.0, tf.float64),
            "rows": weight,
            "loss_times_rows": tf.cast(loss, tf.float64) * weight,
        }
        with tf.control_dependencies([loss]):
            return [
                self._totals[name].assign_add(addend, read_value=False)
                for name, addend in addends.items()
            ]


def create_eval_step() -> tf.Variable:
    """Makes the counter of batches, where `GraphKeys.EVAL_STEP` lets hooks find it."""
    return _local_variable("eval_step", tf.int64, collections=[v1.GraphKeys.EVAL_STEP])


def create_left_out() -> tf.Variable:
    """Makes the counter of rows that are read and not evaluated."""
    return _local_variable("rows_left_out", tf.int64)


def _local_variable(name: str, dtype: tf.DType, collections: list[str] | None = None) -> Any:
    return v1.get_variable(
        name,
        shape=(),
        dtype=dtype,
        initializer=v1.zeros_initializer(),
        trainable=False,
        collections=[v1.GraphKeys.LOCAL_VARIABLES, *(collections or [])],
    )
