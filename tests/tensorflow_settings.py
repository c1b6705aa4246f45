"""Settings of TensorFlow for a test process: four devices on its CPU, and deterministic ops for a block.

Every test process has the devices, so a test finds the same machine whichever tests run beside it. The programs that
tests start have the one device that a user's program has.
"""

import contextlib
from collections.abc import Iterator

import pytest
import tensorflow as tf
from tensorflow.python.framework.config import disable_op_determinism

DEVICES = 4


def make_logical_devices() -> None:
    """Splits the CPU, which TensorFlow allows until it first runs something.

    Raises:
        pytest.UsageError: It has run something.
    """
    cpu = tf.config.list_physical_devices("CPU")[0]
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * DEVICES
        )
    except RuntimeError as error:
        raise pytest.UsageError(
            "A test module has run TensorFlow while it was imported, before its devices were set "
            "up: make the tensors of its top level in a function or fixture."
        ) from error


@contextlib.contextmanager
def deterministic_ops() -> Iterator[None]:
    """Switches deterministic ops on for the block, which a program does for its process; some ops fail then."""
    tf.config.experimental.enable_op_determinism()
    try:
        yield
    finally:
        disable_op_determinism()
