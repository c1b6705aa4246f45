"""Keras 2's metrics, which a graph can update, whatever Keras `tf.keras` is.

Imported when the first head measures something: importing Keras takes a second.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tf_keras.metrics import AUC, Accuracy, BinaryAccuracy, Mean, Precision, Recall

__all__ = ["AUC", "Accuracy", "AccuracyBaseline", "BinaryAccuracy", "Mean", "Precision", "Recall"]


class AccuracyBaseline(Mean):
    """The accuracy of always predicting the more frequent of two classes.

    It is updated with the labels: of their mean m, the baseline is the greater of m and 1 - m.
    """

    def result(self) -> Any:
        """Returns the baseline."""
        most = tf.maximum(self.total, self.count - self.total)
        return tf.math.divide_no_nan(most, self.count)
