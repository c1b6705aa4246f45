"""TensorFlow's deterministic ops, which a program switches on for its process, for a part of a test."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.python.framework.config import disable_op_determinism


@contextlib.contextmanager
def deterministic_ops() -> Iterator[None]:
    """Switches them on for the block; some ops fail then."""
    tf.config.experimental.enable_op_determinism()
    try:
        yield
    finally:
        disable_op_determinism()
