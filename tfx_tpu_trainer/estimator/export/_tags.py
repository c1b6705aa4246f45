"""The tags of an export's metagraphs, by which a loader or a server asks for one of them.

| metagraph | tags |
|---|---|
| serving, on a CPU host | `serve` |
| serving, with the model on a TPU | `serve`, `tpu` |
| training | `train` |
| evaluation | `eval` |
"""

from __future__ import annotations

from typing import Final

import tensorflow as tf

HOST_TAGS: Final = (tf.saved_model.SERVING,)
"""The tags of the metagraph for CPUs and GPUs."""
TPU_TAGS: Final = (tf.saved_model.SERVING, tf.saved_model.TPU)
"""The tags of the metagraph for TPU hosts."""


def of_mode(mode: str) -> tuple[str, ...]:
    """Returns the tags of a metagraph for training or evaluation."""
    return (mode,)
