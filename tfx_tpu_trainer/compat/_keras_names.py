"""`model_to_estimator`, under the names that Keras gave it."""

from __future__ import annotations

import types
from typing import Any

from tfx_tpu_trainer import estimator
from tfx_tpu_trainer.compat._alias_module import make_module


def keras_estimator_module() -> types.ModuleType:
    """Makes the module `tf.keras.estimator`."""
    return make_module(
        "tensorflow.keras.estimator",
        {"model_to_estimator": estimator.model_to_estimator},
        doc="`tfx_tpu_trainer.estimator.model_to_estimator`, where Keras 2 has it.",
    )


def keras_lib_model_to_estimator(
    keras_model: Any = None, *, use_v2_estimator: bool = False, **options: Any
) -> Any:
    """Makes an estimator of a Keras model: what Keras 2's own `model_to_estimator` calls."""
    api = estimator if use_v2_estimator else estimator.v1
    return api.model_to_estimator(keras_model, **options)
