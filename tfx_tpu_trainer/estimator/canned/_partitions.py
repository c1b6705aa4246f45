"""How the variables of a `tf.compat.v1` estimator are cut over parameter servers.

Without parameter servers nothing is cut, but the partitioner is there all the same, as in the
original: names of optimizer slots in a checkpoint have its `part_0` in them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import tensorflow as tf

v1 = tf.compat.v1

# Bytes; below it an input layer's or a linear model's variable stays whole.
_LEAST_SLICE: Final = 64 << 20


def input_partitioner(config: Any, given: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Returns the partitioner of an input layer or a linear model."""
    return given or v1.min_max_variable_partitioner(
        max_partitions=_servers(config), min_slice_size=_LEAST_SLICE
    )


def hidden_partitioner(config: Any) -> Callable[..., Any]:
    """Returns the partitioner of hidden layers; see `input_partitioner`."""
    return v1.min_max_variable_partitioner(max_partitions=_servers(config))


def _servers(config: Any) -> int:
    return config.num_ps_replicas if config else 0
