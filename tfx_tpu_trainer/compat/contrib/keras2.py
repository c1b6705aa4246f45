"""Returns the recurrent cells of TensorFlow 1, which need Keras 2."""

from typing import Any

import tensorflow as tf


def rnn_cells() -> Any:
    """Returns `tf.compat.v1.nn.rnn_cell`."""
    cells = tf.compat.v1.nn.rnn_cell
    try:
        assert cells.RNNCell
    except (AttributeError, ImportError) as error:
        raise ImportError(
            "Recurrent cells of TensorFlow 1 are Keras 2 layers: install tf-keras, and set TF_USE_LEGACY_KERAS=1 "
            "before tf.keras is used."
        ) from error
    return cells
