"""Replaces `tf.contrib.framework`: default arguments by scope, and a model's variables."""

from tfx_tpu_trainer.compat.contrib.framework import nest
from tfx_tpu_trainer.compat.contrib.framework.arg_scope import (
    add_arg_scope,
    arg_scope,
    arg_scoped_arguments,
    current_arg_scope,
    has_arg_scope,
)
from tfx_tpu_trainer.compat.contrib.framework.checkpoints import (
    assign_from_checkpoint,
    assign_from_checkpoint_fn,
    assign_from_values,
    assign_from_values_fn,
    filter_variables,
)
from tfx_tpu_trainer.compat.contrib.framework.conditions import smart_cond
from tfx_tpu_trainer.compat.contrib.framework.small_parts import (
    deprecated,
    get_name_scope,
    get_variable_full_name,
    local_variable,
    with_same_shape,
)
from tfx_tpu_trainer.compat.contrib.framework.variables import (
    add_model_variable,
    get_local_variables,
    get_model_variables,
    get_trainable_variables,
    get_unique_variable,
    get_variables,
    get_variables_by_name,
    get_variables_by_suffix,
    get_variables_to_restore,
    model_variable,
    variable,
)

__all__ = [
    "add_arg_scope",
    "add_model_variable",
    "arg_scope",
    "arg_scoped_arguments",
    "assign_from_checkpoint",
    "assign_from_checkpoint_fn",
    "assign_from_values",
    "assign_from_values_fn",
    "current_arg_scope",
    "deprecated",
    "filter_variables",
    "get_local_variables",
    "get_model_variables",
    "get_name_scope",
    "get_trainable_variables",
    "get_unique_variable",
    "get_variable_full_name",
    "get_variables",
    "get_variables_by_name",
    "get_variables_by_suffix",
    "get_variables_to_restore",
    "has_arg_scope",
    "local_variable",
    "model_variable",
    "nest",
    "smart_cond",
    "variable",
    "with_same_shape",
]
