"""The canned estimators of `tf.estimator`, made of feature columns; `estimator.v1` has the V1 ones."""

from tfx_tpu_trainer.estimator.canned._baseline import (
    BaselineClassifier,
    BaselineEstimator,
    BaselineRegressor,
)
from tfx_tpu_trainer.estimator.canned._combined import (
    DNNLinearCombinedClassifier,
    DNNLinearCombinedEstimator,
    DNNLinearCombinedRegressor,
)
from tfx_tpu_trainer.estimator.canned._dnn import DNNClassifier, DNNEstimator, DNNRegressor
from tfx_tpu_trainer.estimator.canned._linear import (
    LinearClassifier,
    LinearEstimator,
    LinearRegressor,
)

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
    "LinearClassifier",
    "LinearEstimator",
    "LinearRegressor",
]
