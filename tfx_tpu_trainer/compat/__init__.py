"""Runs programs written for `tf.estimator` on today's TensorFlow, unchanged.

`install()` restores the names that TensorFlow 2.16 removed, from this package; `uninstall()` removes them again.
`python -m tfx_tpu_trainer.compat PROGRAM` runs a program with it. Importing this module changes nothing, and does not
import TensorFlow.
"""

from typing import TYPE_CHECKING

from tfx_tpu_trainer._support.imports import lazy_names
from tfx_tpu_trainer.compat._installation import Installation, install, uninstall

if TYPE_CHECKING:
    from tfx_tpu_trainer.compat._program import program_to_run

__all__ = ["Installation", "install", "program_to_run", "uninstall"]

# `install()` needs none of the modules that run a program.
__getattr__, __dir__ = lazy_names(__name__, {"._program": ["program_to_run"]})
