"""Keras models turned into estimators."""

from __future__ import annotations

from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Verdict
from tfx_tpu_trainer.compat.doctor.rules.advice import Advice

_THEME: Final = "keras"
_MODEL_TO_ESTIMATOR: Final = Advice(
    _THEME,
    Verdict.WORKS,
    "tfx_tpu_trainer.compat restores it; it returns an Estimator on the host, like the original. "
    "For TPU cores: tfx_tpu_trainer.estimator.keras_to_estimator(model, ...), a TPUEstimator with "
    "its batch sizes.",
)
_OPTIMIZER: Final = Advice(
    _THEME,
    Verdict.EDIT,
    "It wrapped an optimizer of tf.compat.v1.train for Keras.",
    "tf.keras.optimizers.legacy.Adam(...), or whichever of Keras 2 it is",
)

# Where programs found the private functions that made an estimator of a Keras model.
_PRIVATE_MODULES: Final = (
    "tensorflow.python.keras._impl.keras.estimator",
    "tensorflow.python.keras.estimator",
    "tensorflow.python.estimator.keras",
    "tensorflow_estimator.python.estimator.keras",
    "tensorflow_estimator.python.estimator.keras_lib",
)
PRIVATE_FUNCTIONS: Final = frozenset(
    {
        "tensorflow.python.keras.models.clone_and_build_model",
        *(
            f"{module}.{name}"
            for module in _PRIVATE_MODULES
            for name in (
                "_clone_and_build_model",
                "_convert_estimator_io_to_keras",
                "_create_keras_model_fn",
                "_create_ordered_io",
                "_in_place_subclassed_model_state_restoration",
                "_save_first_checkpoint",
            )
        ),
    }
)
"""Functions that model_to_estimator was made of; a program that calls them has written its own."""
_CLONED: Final = Advice(
    _THEME,
    Verdict.EDIT,
    "A private function that TensorFlow made estimators of Keras models with; TensorFlow 2.16 no longer has it.",
    "leave it out with the function that uses it; tfx_tpu_trainer.estimator.keras_to_estimator(model, ...) does the "
    "whole",
)

RULES: Final[dict[str, Advice]] = {
    f"tensorflow{version}.keras.estimator{name}": _MODEL_TO_ESTIMATOR
    for version in ("", ".compat.v1", ".compat.v2", ".python")
    for name in ("", ".model_to_estimator")
} | {
    **dict.fromkeys(sorted(PRIVATE_FUNCTIONS), _CLONED),
    **{
        f"{module}.model_to_estimator": Advice(
            _THEME,
            Verdict.EDIT,
            "A private path of TensorFlow 1; tf.keras.estimator has this name.",
            becomes="tensorflow.keras.estimator.model_to_estimator",
        )
        for module in (_PRIVATE_MODULES[0], *_PRIVATE_MODULES[2:4])
    },
    "tensorflow.keras.optimizers.TFOptimizer": _OPTIMIZER,
    "tensorflow.compat.v1.keras.optimizers.TFOptimizer": _OPTIMIZER,
    **{
        f"tensorflow.keras.backend.{name}": Advice(
            _THEME,
            Verdict.EDIT,
            "TensorFlow 2's Keras has no sessions; tf.compat.v1.keras has them if Keras is Keras 2.",
            becomes=f"tensorflow.compat.v1.keras.backend.{name}",
        )
        for name in ("get_session", "set_session")
    },
    **{
        f"tensorflow.keras.layers.{name}": Advice(
            _THEME,
            Verdict.EDIT,
            "TensorFlow 2's layers use cuDNN by themselves.",
            f"tf.keras.layers.{name[5:]}; tf.compat.v1.keras.layers.{name} of Keras 2 has the old variables",
        )
        for name in ("CuDNNGRU", "CuDNNLSTM")
    },
    **{
        f"tensorflow.compat.v1.keras.layers.{name}": Advice(
            _THEME, Verdict.WORKS, "A layer of Keras 2, with its old variables."
        )
        for name in ("CuDNNGRU", "CuDNNLSTM")
    },
    "tensorflow.python.keras": Advice(
        _THEME,
        Verdict.EDIT,
        "TensorFlow's private copy of Keras, frozen since 2.6: its layers and models are not those of tf.keras.",
        "tf.keras, with TF_USE_LEGACY_KERAS=1 for Keras 2",
    ),
}
