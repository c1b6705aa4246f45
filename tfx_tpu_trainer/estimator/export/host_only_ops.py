"""Refuses a computation that no TPU could run, while it is still known which line made which op."""

from __future__ import annotations

import tensorflow as tf

from tfx_tpu_trainer.engine.checking import ops_on_tpu
from tfx_tpu_trainer.engine.checking.source_lines import source_line

_SHOWN = 5


def runs_on_tpu(graph: tf.Graph) -> bool:
    """Tells whether a graph, or a function that it has, has put any op on the TPU."""
    definition = graph.as_graph_def()
    bodies = [definition.node, *(each.node_def for each in definition.library.function)]
    return any(ops_on_tpu.ON_TPU_MARK in node.attr for body in bodies for node in body)


def check_runs_on_tpu(graph: tf.Graph) -> None:
    """Checks the ops that a graph has put on the TPU.

    Strings, tables, datasets and Python functions are found here. Whether the TPU's compiler takes
    all other ops can only be known by compiling.

    Args:
        graph: The graph, a function's too, in which `tf.compat.v1.tpu.rewrite` was called.

    Raises:
        ValueError: If no TPU can run some of them; names each op and the line that made it.
    """
    definition = graph.as_graph_def()
    functions = {function.signature.name: function for function in definition.library.function}
    refused = []
    for node, caller in ops_on_tpu.nodes_on_tpu(definition.node, functions):
        reason = ops_on_tpu.why_not_on_tpu(node)
        if reason:
            line = source_line(graph.get_operation_by_name(caller.name))
            where = line or "its source line is not known"
            part_of = "" if caller is node else f" in {caller.op} {caller.name!r}"
            refused.append(f"{node.op} {node.name!r}{part_of}, which {reason} ({where})")
    if not refused:
        return
    more = f"; and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
    raise ValueError(
        f"The model can't be exported for TPU hosts: no TPU can run {'; '.join(refused[:_SHOWN])}{more}. "
        "Compute this before the model, in Transform or in the serving_input_receiver_fn, or call it "
        "through tf.compat.v1.tpu.outside_compilation(function, *tensors), which keeps it on the "
        "host; or export with export_to_tpu=False."
    )
