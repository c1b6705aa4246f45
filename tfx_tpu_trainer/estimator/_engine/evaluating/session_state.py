"""Decides whether anything but variables stays in a session after its calls."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import UNTUNED_ITERATORS
from tfx_tpu_trainer.estimator._engine.graph_nodes import (
    all_nodes,
    functions_of,
    nodes_called,
    upstream,
)

v1 = tf.compat.v1

VARIABLES = frozenset({"VarHandleOp", "Variable", "VariableV2"})

# Ops with state, but of variables, of tables that never change, or that ends with the call.
_HARMLESS = frozenset(
    {
        *VARIABLES,
        *("ReadVariableOp", "VarIsInitializedOp", "VariableShape", "DestroyResourceOp"),
        *("HashTableV2", "LookupTableFindV2", "LookupTableSizeV2"),
        *("InitializeTableV2", "InitializeTableFromTextFileV2", "LookupTableImportV2"),
        *("Assert", "CheckNumerics", "CheckNumericsV2"),
        *("StatefulPartitionedCall", "If", "While", "Case", "Placeholder"),
    }
)
_HARMLESS_BEGINNINGS = ("Assign", "ResourceGather", "ResourceScatter", "ResourceStridedSliceAssign")

# Shuffled or random datasets draw other numbers when they are read again.
_DRAWS = ("Cache", "Random", "Sampling", "Shuffle")
_PYTHON = frozenset({"EagerPyFunc", "PyFunc"})
_STARTING_OVER = "starting_over"


def starting_over(
    function: Callable[..., Any], inputs: Sequence[Any], dtypes: Any
) -> Any:  # Tensors, in the structure of `dtypes`.
    """Calls a Python function that keeps no state from one evaluation to the next."""
    return tf.numpy_function(function, inputs, dtypes, name=_STARTING_OVER)


def is_harmless(kind: str) -> bool:
    """Returns whether an op with state keeps none outside of variables."""
    return kind in _HARMLESS or kind.startswith(_HARMLESS_BEGINNINGS)


def calls_python(graph: tf.Graph) -> bool:
    """Returns whether a graph calls Python functions other than `starting_over`'s, which may keep state."""
    return any(
        node.op in _PYTHON and not node.name.rpartition("/")[2].startswith(_STARTING_OVER)
        for node in all_nodes(graph.as_graph_def())
    )


def leaves_no_state(graph: tf.Graph) -> bool:
    """Returns whether a session that initializes the graph's local variables and input again is like a new one."""
    # Python functions aside, see `calls_python`.
    # A restored checkpoint takes the place of first values, which are often random.
    first = upstream(variable.initializer for variable in v1.global_variables())
    of_first = {op.name for op in first}
    graph_def = graph.as_graph_def()
    nodes = [node for node in graph_def.node if node.name not in of_first]
    called = nodes_called(nodes, functions_of(graph_def.library))
    # Starting a tuned dataset over may take a minute, as ending it does; see `feeding.dataset_rewrites`.
    untuned = {op.name for op in v1.get_collection(UNTUNED_ITERATORS)}
    return not v1.get_collection(v1.GraphKeys.QUEUE_RUNNERS) and all(
        node.name in untuned if node.op == "MakeIterator" else _starts_over(node.op)
        for node in itertools.chain(nodes, called)
    )


def _starts_over(kind: str) -> bool:
    definition = tf_private.op_definition(kind)
    if definition is None or not definition.is_stateful or is_harmless(kind):
        return True
    if kind in _PYTHON or kind == "Timestamp":
        return True
    is_input = "Dataset" in kind or kind.startswith("Iterator")
    return is_input and not kind.startswith(_DRAWS)
