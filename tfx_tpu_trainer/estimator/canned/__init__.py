"""The canned estimators of `tf.estimator`, made of feature columns; `estimator.v1` has the V1 ones."""

from tfx_tpu_trainer.estimator.canned.baseline import (
    BaselineClassifier,
    BaselineEstimator,
    BaselineRegressor,
)
from tfx_tpu_trainer.estimator.canned.combined import (
    DNNLinearCombinedClassifier,
    DNNLinearCombinedEstimator,
    DNNLinearCombinedRegressor,
)
from tfx_tpu_trainer.estimator.canned.dnn import DNNClassifier, DNNEstimator, DNNRegressor
from tfx_tpu_trainer.estimator.canned.linear import (
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
