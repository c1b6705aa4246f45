"""Keras models as estimators: `model_to_estimator` as the original's, `keras_to_estimator` ours.

A Keras model runs eagerly, an estimator's model in a session's graph. What joins them: a call of
train, evaluate or predict traces the Keras model as Keras itself would, in a `tf.function`, and
copies the traced nodes into the estimator's graph, where each Keras variable has a graph variable
that stands for it. So the model is neither cloned nor made again from its config, Keras 2 and
Keras 3 work alike, and the caller's model keeps its values.
"""

from tfx_tpu_trainer.estimator.keras.to_estimator import (
    keras_to_estimator,
    model_to_estimator,
    v1_model_to_estimator,
)

__all__ = ["keras_to_estimator", "model_to_estimator", "v1_model_to_estimator"]
