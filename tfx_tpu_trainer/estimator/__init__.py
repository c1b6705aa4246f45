"""The API of `tf.estimator`, name for name.

`estimator.tpu` has that of TPUEstimator, `estimator.v1` that of `tf.compat.v1.estimator` and
`estimator.inputs` its input functions.

If the program has not used tf.keras yet, importing this module chooses Keras 2 (TF_USE_LEGACY_KERAS=1), which
tf.compat.v1.layers, feature columns and `tf.estimator`'s optimizers need; set the variable to 0 to keep Keras 3.
"""

from tfx_tpu_trainer._support.imports import choose_keras_2

choose_keras_2()

from tfx_tpu_trainer.estimator import (
    _hook_names,
    canned,
    experimental,
    export,
    heads,
    inputs,
    schedule,
    tpu,
    v1,
)
from tfx_tpu_trainer.estimator._estimator import Estimator
from tfx_tpu_trainer.estimator._estimator_spec import EstimatorSpec
from tfx_tpu_trainer.estimator._extenders import add_metrics, forward_features
from tfx_tpu_trainer.estimator._hook_names import *
from tfx_tpu_trainer.estimator._modes import ModeKeys
from tfx_tpu_trainer.estimator._run_config import RunConfig
from tfx_tpu_trainer.estimator._warm_start import VocabInfo, WarmStartSettings
from tfx_tpu_trainer.estimator.canned import *
from tfx_tpu_trainer.estimator.canned._shared import (
    classifier_parse_example_spec,
    regressor_parse_example_spec,
)
from tfx_tpu_trainer.estimator.heads import *
from tfx_tpu_trainer.estimator.keras import keras_to_estimator, model_to_estimator
from tfx_tpu_trainer.estimator.schedule import *

__all__ = [
    "Estimator",
    "EstimatorSpec",
    "ModeKeys",
    "RunConfig",
    "VocabInfo",
    "WarmStartSettings",
    "add_metrics",
    "classifier_parse_example_spec",
    "experimental",
    "export",
    "forward_features",
    "inputs",
    "keras_to_estimator",
    "model_to_estimator",
    "regressor_parse_example_spec",
    "tpu",
    "v1",
]
__all__ += canned.__all__
__all__ += heads.__all__
__all__ += _hook_names.__all__
__all__ += schedule.__all__
