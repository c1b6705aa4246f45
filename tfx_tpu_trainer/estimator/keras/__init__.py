"""Keras models as estimators: `model_to_estimator` as the original's, `keras_to_estimator` ours.

A Keras model runs eagerly, an estimator's model in a session's graph. What joins them: a call of
train, evaluate or predict traces the Keras model as Keras itself would, in a `tf.function`, and
copies the traced nodes into the estimator's graph, where each Keras variable has a graph variable
that stands for it. So the model is neither cloned nor made again from its config, Keras 2 and
Keras 3 work alike, and the caller's model keeps its values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfx_tpu_trainer._support.imports import lazy_names

if TYPE_CHECKING:
    from tfx_tpu_trainer.estimator.keras._to_estimator import (
        keras_to_estimator,
        model_to_estimator,
        v1_model_to_estimator,
    )

__all__ = ["keras_to_estimator", "model_to_estimator", "v1_model_to_estimator"]

# Lazily, since an estimator's calls read modules of this folder, and these functions make estimators.
__getattr__, __dir__ = lazy_names(
    __name__,
    {"._to_estimator": ["keras_to_estimator", "model_to_estimator", "v1_model_to_estimator"]},
)
