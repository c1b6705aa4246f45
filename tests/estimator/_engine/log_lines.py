"""What TensorFlow's logger says during a test."""

import contextlib
from collections.abc import Iterator

import pytest
import tensorflow as tf


@contextlib.contextmanager
def log_lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Lets pytest see TensorFlow's logger, from INFO up; gives the lines at the end of the block."""
    logger, lines = tf.get_logger(), []
    before = logger.propagate, logger.level
    logger.propagate = True
    logger.setLevel("INFO")
    try:
        yield lines
    finally:
        logger.propagate, level = before
        logger.setLevel(level)
        lines.extend(record.getMessage() for record in caplog.records)
