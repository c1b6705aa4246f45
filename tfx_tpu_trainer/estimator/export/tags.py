"""The tags by which a server finds the metagraphs of an exported model."""

from __future__ import annotations

from typing import Final

import tensorflow as tf

HOST_TAGS: Final = (tf.saved_model.SERVING,)
"""Of the metagraph that runs on a host's own devices."""

TPU_TAGS: Final = (tf.saved_model.SERVING, tf.saved_model.TPU)
"""Of the metagraph whose host has a TPU."""
