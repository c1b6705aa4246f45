"""How far a run is, and who is shown it: log lines, bars on a terminal or in a notebook, a file for a runner.

It knows no TensorFlow. What is shown is what the engine has at hand: nothing is computed to be shown.
"""

from tfx_tpu_trainer.progress.following import (
    MODES,
    current,
    expecting,
    followed,
    phase,
    unfollowed,
)
from tfx_tpu_trainer.progress.progress import Progress, View
from tfx_tpu_trainer.progress.work import Batches, Steps

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
