"""Keras models as estimators: the original's `model_to_estimator`, and `keras_to_estimator` for TPUs.

A Keras model runs eagerly, an estimator's model in a session's graph. A call of train, evaluate or predict traces the
Keras model in a `tf.function`, as Keras itself would, and copies the traced nodes into the estimator's graph, where a
graph variable represents each Keras variable. So the model is neither cloned nor made again from its config, Keras 2
and Keras 3 work in the same way, and the caller's model keeps its values.
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

# Lazy, since modules of estimators import modules of this folder, which import estimators.
__getattr__, __dir__ = lazy_names(
    __name__,
    {"._to_estimator": ["keras_to_estimator", "model_to_estimator", "v1_model_to_estimator"]},
)
