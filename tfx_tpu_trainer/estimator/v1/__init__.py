"""The API of `tf.compat.v1.estimator`, name for name.

All other names are those of `tfx_tpu_trainer.estimator`. The canned estimators differ: they take optimizers of
`tf.compat.v1.train` and partitioners, sum the rows' losses by default, and their checkpoints hold other names of
optimizer slots.
"""

from tfx_tpu_trainer.estimator import _hook_names, export, heads, inputs, schedule, tpu
from tfx_tpu_trainer.estimator._estimator import Estimator
from tfx_tpu_trainer.estimator._estimator_spec import EstimatorSpec
from tfx_tpu_trainer.estimator._extenders import add_metrics
from tfx_tpu_trainer.estimator._hook_names import *
from tfx_tpu_trainer.estimator._modes import ModeKeys
from tfx_tpu_trainer.estimator._run_config import RunConfig
from tfx_tpu_trainer.estimator._warm_start import VocabInfo, WarmStartSettings
from tfx_tpu_trainer.estimator.canned._baseline import V1BaselineClassifier as BaselineClassifier
from tfx_tpu_trainer.estimator.canned._baseline import V1BaselineEstimator as BaselineEstimator
from tfx_tpu_trainer.estimator.canned._baseline import V1BaselineRegressor as BaselineRegressor
from tfx_tpu_trainer.estimator.canned._combined import (
    V1DNNLinearCombinedClassifier as DNNLinearCombinedClassifier,
)
from tfx_tpu_trainer.estimator.canned._combined import (
    V1DNNLinearCombinedEstimator as DNNLinearCombinedEstimator,
)
from tfx_tpu_trainer.estimator.canned._combined import (
    V1DNNLinearCombinedRegressor as DNNLinearCombinedRegressor,
)
from tfx_tpu_trainer.estimator.canned._dnn import V1DNNClassifier as DNNClassifier
from tfx_tpu_trainer.estimator.canned._dnn import V1DNNEstimator as DNNEstimator
from tfx_tpu_trainer.estimator.canned._dnn import V1DNNRegressor as DNNRegressor
from tfx_tpu_trainer.estimator.canned._linear import V1LinearClassifier as LinearClassifier
from tfx_tpu_trainer.estimator.canned._linear import V1LinearEstimator as LinearEstimator
from tfx_tpu_trainer.estimator.canned._linear import V1LinearRegressor as LinearRegressor
from tfx_tpu_trainer.estimator.canned._shared import (
    v1_classifier_parse_example_spec as classifier_parse_example_spec,
)
from tfx_tpu_trainer.estimator.canned._shared import (
    v1_regressor_parse_example_spec as regressor_parse_example_spec,
)
from tfx_tpu_trainer.estimator.heads import *
from tfx_tpu_trainer.estimator.keras import v1_model_to_estimator as model_to_estimator
from tfx_tpu_trainer.estimator.schedule import *
from tfx_tpu_trainer.estimator.v1 import experimental

# They are defined as V1LinearClassifier and so on, in one file with the classes of the other form. A program sees the
# original's names: in messages, in `type(estimator).__name__`, and where it pickles a class.
for _name, _class in list(globals().items()):
    if isinstance(_class, type) and _class.__name__ == f"V1{_name}":
        _class.__name__ = _class.__qualname__ = _name
        _class.__module__ = __name__

__all__ = [
    "BaselineClassifier",
    "BaselineEstimator",
    "BaselineRegressor",
    "DNNClassifier",
    "DNNEstimator",
    "DNNLinearCombinedClassifier",
    "DNNLinearCombinedEstimator",
    "DNNLinearCombinedRegressor",
    "DNNRegressor",
    "Estimator",
    "EstimatorSpec",
    "LinearClassifier",
    "LinearEstimator",
    "LinearRegressor",
    "ModeKeys",
    "RunConfig",
    "VocabInfo",
    "WarmStartSettings",
    "add_metrics",
    "classifier_parse_example_spec",
    "experimental",
    "export",
    "inputs",
    "model_to_estimator",
    "regressor_parse_example_spec",
    "tpu",
]
__all__ += heads.__all__
__all__ += _hook_names.__all__
__all__ += schedule.__all__
