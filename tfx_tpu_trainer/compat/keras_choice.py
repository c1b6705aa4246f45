"""Which Keras TensorFlow uses, and when that can still be chosen."""

from __future__ import annotations

import logging
import os
import sys

VARIABLE = "TF_USE_LEGACY_KERAS"

_logger = logging.getLogger(__name__)


def choose_keras_2() -> None:
    """Chooses Keras 2, whose layers and optimizers programs of tf.estimator use.

    TensorFlow asks the environment variable when it is imported. What the program says there stays;
    where it is too late, a log line says what to do.
    """
    if "tensorflow" not in sys.modules:
        os.environ.setdefault(VARIABLE, "1")
    elif os.environ.get(VARIABLE) not in ("1", "true", "True"):
        _logger.warning(
            "TensorFlow was imported with Keras 3. If the program uses tf.compat.v1.layers, "
            "feature columns or Keras 2 optimizers, set %s=1 before TensorFlow is imported.",
            VARIABLE,
        )
