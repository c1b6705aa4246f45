"""Adam for some rows of a table, lazy or not."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

v1 = tf.compat.v1


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparseAdam:
    """Adam with a choice of what happens to the rows that a step does not touch.

    The bias of the moments is corrected by the step's number, not by powers kept in variables,
    so that a table's checkpoint has what an ordinary one has and no more.

    Attributes:
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        epsilon: Keeps the divisor from zero.
        lazy: Whether moments decay, and rows move, only where there is a gradient; else
            everywhere, as with `tf.compat.v1.train.AdamOptimizer`.
        sum_inside_sqrt: Whether the divisor is sqrt(v + epsilon^2), not sqrt(v) + epsilon.
    """

    beta1: float
    beta2: float
    epsilon: float
    lazy: bool
    sum_inside_sqrt: bool

    def apply(
        self, table: tf.Variable, gradient: tf.IndexedSlices, *, rate: tf.Tensor, step: tf.Tensor
    ) -> tf.Operation:
        """Makes one step; the moments' variables are made in the default graph."""
        first, second = _slot(table, "Adam"), _slot(table, "Adam_1")
        number = tf.cast(step + 1, table.dtype)
        rate *= tf.sqrt(1 - self.beta2**number) / (1 - self.beta1**number)
        moments = [
            self._decayed(first, self.beta1, gradient.values, gradient.indices),
            self._decayed(second, self.beta2, tf.square(gradient.values), gradient.indices),
        ]
        with tf.control_dependencies(moments):
            if self.lazy:
                rows = gradient.indices
                moved = self._move(tf.gather(first, rows), tf.gather(second, rows))
                change = v1.scatter_sub(table, rows, rate * moved)
            else:
                moved = self._move(first.read_value(), second.read_value())
                change = table.assign_sub(rate * moved, read_value=False)
        return tf.group(change)

    def _decayed(
        self, moment: tf.Variable, decay: float, values: tf.Tensor, rows: tf.Tensor
    ) -> tf.Operation:
        added = (1 - decay) * values
        if self.lazy:
            kept = decay * tf.gather(moment, rows)
            return tf.group(v1.scatter_update(moment, rows, kept + added))
        with tf.control_dependencies([moment.assign(decay * moment, read_value=False)]):
            return tf.group(v1.scatter_add(moment, rows, added))

    def _move(self, first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
        if self.sum_inside_sqrt:
            return first / tf.sqrt(second + self.epsilon**2)
        return first / (tf.sqrt(second) + self.epsilon)


def _slot(table: tf.Variable, name: str) -> tf.Variable:
    """Makes a variable like the table, named as `tf.compat.v1.train.AdamOptimizer` names its own."""
    return v1.get_variable(
        f"{table.op.name}/{name}",
        shape=table.shape,
        dtype=table.dtype,
        initializer=v1.zeros_initializer(),
        trainable=False,
    )
