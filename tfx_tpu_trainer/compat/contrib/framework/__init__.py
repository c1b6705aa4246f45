"""Replaces `tf.contrib.framework`: default arguments by scope, and a model's variables."""

from tfx_tpu_trainer.compat.contrib.framework import nest
from tfx_tpu_trainer.compat.contrib.framework.arg_scope import (
    add_arg_scope,
    arg_scope,
    current_arg_scope,
    deprecated,
    get_name_scope,
    local_variable,
    smart_cond,
    with_same_shape,
)
from tfx_tpu_trainer.compat.contrib.framework.variables import (
    add_model_variable,
    assign_from_checkpoint_fn,
    filter_variables,
    get_model_variables,
    get_trainable_variables,
    get_variables,
    get_variables_to_restore,
    model_variable,
    variable,
)

__all__ = [
    "add_arg_scope",
    "add_model_variable",
    "arg_scope",
    "assign_from_checkpoint_fn",
    "current_arg_scope",
    "deprecated",
    "filter_variables",
    "get_model_variables",
    "get_name_scope",
    "get_trainable_variables",
    "get_variables",
    "get_variables_to_restore",
    "local_variable",
    "model_variable",
    "nest",
    "smart_cond",
    "variable",
    "with_same_shape",
]
