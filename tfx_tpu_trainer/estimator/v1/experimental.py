"""Mirrors `tf.compat.v1.estimator.experimental`."""

from tfx_tpu_trainer.estimator.canned._experimental import (
    KMeans,
    LinearSDCA,
    call_logit_fn,
    dnn_logit_fn_builder,
    linear_logit_fn_builder,
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
    "KMeans",
    "LinearSDCA",
    "build_raw_supervised_input_receiver_fn",
    "call_logit_fn",
    "dnn_logit_fn_builder",
    "linear_logit_fn_builder",
    "make_early_stopping_hook",
    "make_stop_at_checkpoint_step_hook",
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
]
