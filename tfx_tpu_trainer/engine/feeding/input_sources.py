"""Whether an input may be read before it is needed."""

from __future__ import annotations

import tensorflow as tf

# Python code can tell when it is called, and an input may wait for what was made of the rows
# before: a service that predicts feeds a generator with its requests.
_FROM_OUTSIDE = (
    "Barrier",
    "DataServiceDataset",
    "EagerPyFunc",
    "GeneratorDataset",
    "PyFunc",
    "Queue",
    "ReaderRead",
    "Recv",
    "Stage",
    "Unstage",
)


def can_be_read_ahead(graph: tf.Graph) -> bool:
    """Tells whether nobody but the clock could notice that an input is read ahead.

    Args:
        graph: The graph of the input.

    Returns:
        `False` where Python code runs in the graph, or where its data comes from outside or from
        a dataset that is not TensorFlow's.
    """
    definition = graph.as_graph_def()
    functions = definition.library.function
    ops = {node.op for node in definition.node}
    ops.update(node.op for function in functions for node in function.node_def)
    return not any(op.startswith(_FROM_OUTSIDE) or _is_foreign_dataset(op) for op in ops)


def _is_foreign_dataset(op: str) -> bool:
    return "Dataset" in op and not hasattr(tf.raw_ops, op)
