"""Replaces `tf.contrib.training`: hyperparameters, train ops, loops that train and evaluate."""

from tfx_tpu_trainer.compat.contrib.tf_private import (
    StopAfterNEvalsHook,
    evaluate_once,
    get_or_create_eval_step,
)
from tfx_tpu_trainer.compat.contrib.training.hparams import HParams, parse_values
from tfx_tpu_trainer.compat.contrib.training.loops import (
    SummaryAtEndHook,
    add_gradients_summaries,
    clip_gradient_norms,
    create_train_op,
    evaluate_repeatedly,
    multiply_gradients,
    train,
    wait_for_new_checkpoint,
)

__all__ = [
    "HParams",
    "StopAfterNEvalsHook",
    "SummaryAtEndHook",
    "add_gradients_summaries",
    "clip_gradient_norms",
    "create_train_op",
    "evaluate_once",
    "evaluate_repeatedly",
    "get_or_create_eval_step",
    "multiply_gradients",
    "parse_values",
    "train",
    "wait_for_new_checkpoint",
]
