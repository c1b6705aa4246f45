"""Mirrors `tf.estimator.experimental`.

LinearSDCA and the RNN estimators exist as names only: creating one raises an error that names a replacement.
"""

from tfx_tpu_trainer.estimator.canned._experimental import (
    LinearSDCA,
    RNNClassifier,
    RNNEstimator,
    call_logit_fn,
)
from tfx_tpu_trainer.estimator.export._receivers import build_raw_supervised_input_receiver_fn
from tfx_tpu_trainer.estimator.hooks import (
    InMemoryEvaluatorHook,
    make_early_stopping_hook,
    make_stop_at_checkpoint_step_hook,
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
)

__all__ = [
    "InMemoryEvaluatorHook",
    "LinearSDCA",
    "RNNClassifier",
    "RNNEstimator",
    "build_raw_supervised_input_receiver_fn",
    "call_logit_fn",
    "make_early_stopping_hook",
    "make_stop_at_checkpoint_step_hook",
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
]
