"""Puts ops on the CPU where TensorFlow sees a GPU, which runs the ops of a step that name no device.

Nothing here is needed for the numbers: it saves copies between the GPU's memory and the CPU's, each of which waits
until the GPU has done all that was handed to it.
"""

from __future__ import annotations

import contextlib

import tensorflow as tf

v1 = tf.compat.v1


def sees_gpus() -> bool:
    """Tells whether there is a GPU that the program has not hidden from TensorFlow."""
    return bool(tf.config.get_visible_devices("GPU"))


def decided_on_cpu() -> contextlib.AbstractContextManager[None]:
    """Returns a scope for ops that decide whether a loop goes on.

    A loop reads its condition on the CPU. Left to itself TensorFlow puts what a condition is made
    of on the GPU, but for int32, so that the clock and a count of batches were sent there and their
    comparison waited for, batch after batch.
    """
    return v1.device("/device:CPU:0") if sees_gpus() else contextlib.nullcontext()
