"""Which Keras TensorFlow has, when that can still be chosen, and what is said where it is the wrong one."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterator

VARIABLE = "TF_USE_LEGACY_KERAS"

_logger = logging.getLogger(__name__)

# What TensorFlow and Keras 3 say of a name that only Keras 2 has.
_NOT_IN_KERAS_3 = re.compile(
    r"not (available with|supported in) Keras 3|module 'keras(\._tf_keras\.keras)?(\.\w+)*' has no attribute"
)


class Keras2NeededError(RuntimeError):
    """A user's function uses what only Keras 2 has, and TensorFlow was imported with Keras 3."""


def choose_keras_2(*, warns: bool = False) -> None:
    """Chooses Keras 2, whose layers and optimizers programs of tf.estimator use.

    TensorFlow asks the environment variable when it is imported. What the program says there stays.
    """
    if "tensorflow" not in sys.modules:
        os.environ.setdefault(VARIABLE, "1")
    elif warns and not _is_chosen():
        _logger.warning(
            "TensorFlow was imported with Keras 3. If the program uses tf.compat.v1.layers, "
            "feature columns or Keras 2 optimizers, set %s=1 before TensorFlow is imported.",
            VARIABLE,
        )


@contextlib.contextmanager
def keras_2_is_asked_for(function: str) -> Iterator[None]:
    """Says of a name that Keras 3 does not have how to get Keras 2."""
    try:
        yield
    except (AttributeError, ImportError) as error:
        if _is_chosen() or not _NOT_IN_KERAS_3.search(str(error)):
            raise
        name = getattr(error, "name", None)
        what = (
            f"{name!r}, which Keras 3 does not have"
            if name
            else "something that Keras 3 does not have"
        )
        raise Keras2NeededError(
            f"{function} uses {what}, and TensorFlow was imported with Keras 3. For Keras 2, import "
            f"tfx_tpu_trainer.estimator before tensorflow, or set {VARIABLE}=1 in the environment of the program."
        ) from error


def _is_chosen() -> bool:
    return os.environ.get(VARIABLE) in ("1", "true", "True")
