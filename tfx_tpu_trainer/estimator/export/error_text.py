"""The part of a TensorFlow error that tells what is wrong."""

from __future__ import annotations

import tensorflow as tf


def reason_of(error: Exception) -> str:
    """Returns an error's message in one line.

    An error of a graph quotes all Python frames in which the op was made, on indented lines; here
    those are the exporter's own.

    Args:
        error: An error of TensorFlow, or another one.
    """
    message = error.message if isinstance(error, tf.errors.OpError) else str(error)
    lines = [line for line in message.splitlines() if line and not line[0].isspace()]
    return " ".join(lines).rstrip(".")
