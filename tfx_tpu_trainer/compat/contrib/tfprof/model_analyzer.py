"""`tf.contrib.tfprof.model_analyzer`: `tf.compat.v1.profiler.profile` under its older arguments."""

from collections.abc import Mapping
from typing import Any, Final

import tensorflow as tf

_builder = tf.compat.v1.profiler.ProfileOptionBuilder
# The argument's value that means the profiler's own options.
_DEFAULT: Final = 0

TRAINABLE_VARS_PARAMS_STAT_OPTIONS: Final = _builder.trainable_variables_parameter()
"""Options of `print_model_analysis`: counts the parameters of the trainable variables."""

FLOAT_OPS_OPTIONS: Final = _builder.float_operation()
"""Options of `print_model_analysis`: counts floating-point operations."""

__all__ = [
    "FLOAT_OPS_OPTIONS",
    "TRAINABLE_VARS_PARAMS_STAT_OPTIONS",
    "print_model_analysis",
]


def print_model_analysis(
    graph: tf.Graph,
    run_meta: Any = None,
    op_log: Any = None,
    tfprof_cmd: str = "scope",
    tfprof_options: Mapping[str, Any] | int = _DEFAULT,
) -> Any:
    """Prints the cost of a graph's parts, and returns it."""
    return tf.compat.v1.profiler.profile(graph, run_meta, op_log, tfprof_cmd, tfprof_options)
