"""The original's package by its private paths, old and new."""
import tensorflow.compat.v1 as tf
from tensorflow.python.estimator import model_fn as model_fn_lib
from tensorflow_estimator.python.estimator import estimator as estimator_lib

estimator = estimator_lib.Estimator(  #: works tensorflow_estimator.python.estimator.estimator.Estimator
    lambda features, mode: model_fn_lib.EstimatorSpec(mode, predictions=features))  #: works tf.python.estimator.model_fn.EstimatorSpec
assert model_fn_lib.EstimatorSpec is tf.estimator.EstimatorSpec  #: works tf.compat.v1.estimator.EstimatorSpec


def not_here():
    from tensorflow.python.estimator.canned import head  #: edit tf.python.estimator.canned.head -> look for a public name
