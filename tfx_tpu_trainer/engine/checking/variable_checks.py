"""Checks that the trainable variables are numbers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

v1 = tf.compat.v1


def after(run: Any) -> tf.Operation:
    """Makes an op that runs something and then checks every trainable variable.

    On TPU cores a loop cannot stop at a NaN; the original looks at the variables when it comes
    back, and so do we, in its words.

    Args:
        run: The op or tensor to run first.

    Returns:
        The op; it fails with InvalidArgumentError, "Gradient for <variable> is NaN".
    """
    with tf.control_dependencies([run]):
        return tf.group(*_checks(), run)


class VariableChecksHook(v1.train.SessionRunHook):
    """Checks the trainable variables once, when the session is made.

    Evaluation and prediction change none of them, so there is no need to look again.
    """

    def begin(self) -> None:
        """Makes the op, before the graph is finalized."""
        self._check = tf.group(*_checks())

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Checks; fails with InvalidArgumentError, "Gradient for <variable> is NaN"."""
        del coord
        session.run(self._check)


def _checks() -> list[tf.Tensor]:
    return [
        tf.debugging.check_numerics(
            variable.read_value(), f"Gradient for {variable.op.name} is NaN"
        )
        for variable in v1.trainable_variables()
        if variable.dtype.is_floating
    ]
