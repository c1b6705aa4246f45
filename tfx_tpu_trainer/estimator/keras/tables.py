"""Lookup tables of Keras layers, such as StringLookup, in a session's graph."""

from __future__ import annotations

from typing import Any, Final

import tensorflow as tf

from tfx_tpu_trainer.estimator.keras.eagerly import eagerly
from tfx_tpu_trainer.estimator.keras.trace import Trace

_FIND: Final = "LookupTableFindV2"


def copy_table(handle: Any, trace: Trace) -> tf.Tensor:
    """Makes a table of the default graph with the keys and values of an eager one.

    Args:
        handle: The eager table's handle.
        trace: The trace that looks keys up in it.

    Returns:
        The handle of the table, which is initialized with the session.

    Raises:
        ValueError: If it is not the handle of a table that is looked up.
    """
    finding = [op for op in trace.graph.get_operations() if op.type == _FIND]
    op = next((op for op in finding if any(h is handle for h in trace.handles_of(op))), None)
    if op is None:
        raise ValueError(
            f"The Keras model uses {handle!r}, which is neither a variable nor a lookup table. Only "
            "those can be carried into the graph of an estimator: do the rest in input_fn."
        )
    keys, values = eagerly(
        lambda: tf.raw_ops.LookupTableExportV2(
            table_handle=handle, Tkeys=op.get_attr("Tin"), Tvalues=op.get_attr("Tout")
        )
    )
    # What is not there is looked up with a default value of the model's own.
    default = tf.zeros((), values.dtype) if values.dtype != tf.string else tf.constant("")
    initializer = tf.lookup.KeyValueTensorInitializer(
        tf.constant(keys.numpy()), tf.constant(values.numpy())
    )
    return tf.lookup.StaticHashTable(initializer, default).resource_handle
