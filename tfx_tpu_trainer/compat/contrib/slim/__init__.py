"""`tf.contrib.slim`: layers, argument scopes, metrics, decoders, and loops that train and evaluate.

The layers are those of `tfx_tpu_trainer.compat.contrib.layers`, so an `arg_scope` holds for both.
"""

from tfx_tpu_trainer.compat.contrib import metrics
from tfx_tpu_trainer.compat.contrib.framework import (
    add_arg_scope,
    add_model_variable,
    arg_scope,
    assign_from_checkpoint_fn,
    current_arg_scope,
    deprecated,
    filter_variables,
    get_model_variables,
    get_trainable_variables,
    get_variables,
    get_variables_to_restore,
    local_variable,
    model_variable,
    variable,
)
from tfx_tpu_trainer.compat.contrib.layers import *  # noqa: F403 - slim has all of them.
from tfx_tpu_trainer.compat.contrib.layers import __all__ as _layers
from tfx_tpu_trainer.compat.contrib.layers import initializers, regularizers, utils
from tfx_tpu_trainer.compat.contrib.slim import (
    data_decoder,
    evaluation,
    learning,
    queues,
    summaries,
    tfexample_decoder,
)

__all__ = [
    *_layers,
    "add_arg_scope",
    "add_model_variable",
    "arg_scope",
    "assign_from_checkpoint_fn",
    "current_arg_scope",
    "data_decoder",
    "deprecated",
    "evaluation",
    "filter_variables",
    "get_model_variables",
    "get_trainable_variables",
    "get_variables",
    "get_variables_to_restore",
    "initializers",
    "learning",
    "local_variable",
    "metrics",
    "model_variable",
    "queues",
    "regularizers",
    "summaries",
    "tfexample_decoder",
    "utils",
    "variable",
]
