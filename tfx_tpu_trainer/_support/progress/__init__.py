"""How far a run is, and who is shown it: log lines, bars on a terminal or in a notebook, a file for a runner.

It does not import TensorFlow. It shows what the engine already knows: nothing is computed for display.
"""

from tfx_tpu_trainer._support.progress.following import (
    MODES,
    current,
    expecting,
    followed,
    phase,
    unfollowed,
)
from tfx_tpu_trainer._support.progress.progress import Progress, View
from tfx_tpu_trainer._support.progress.work import Batches, Steps

__all__ = [
    "MODES",
    "Batches",
    "Progress",
    "Steps",
    "View",
    "current",
    "expecting",
    "followed",
    "phase",
    "unfollowed",
]
