"""Keeps what TensorFlow and its libraries say of themselves out of a command's answer."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_tensorflow() -> Iterator[None]:
    """Without what TensorFlow says of this machine while it starts, and libraries of versions that end.

    The block imports what it needs: nothing of TensorFlow may have been imported before.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    tensorflow = logging.getLogger("tensorflow")
    level = tensorflow.level
    tensorflow.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        tensorflow.setLevel(level)
