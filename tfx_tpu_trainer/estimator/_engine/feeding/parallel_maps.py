"""Which maps of a dataset run in parallel without tuning: those that do while TensorFlow tunes.

While TensorFlow tunes a dataset, `map(function)` without `num_parallel_calls` runs on several
threads if the function keeps no state (tf.data's option `map_parallelization`, on by default). It
does not while tuning is off: a map that takes longer than a step would make training half as fast
on two cores, and worse on more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.feeding.dataset_edits import Edit, ops_of
from tfx_tpu_trainer.estimator._engine.graph_nodes import called_functions, functions_of

v1 = tf.compat.v1


def maps_to_run_in_parallel(
    dataset: tf.data.Dataset, options: tf.data.Options
) -> dict[tf.Operation, Edit]:
    """Finds the maps that run in turn although several threads would make the same elements.

    Maps within the function of another stage (`interleave`, `flat_map`) are not among them, as
    TensorFlow leaves those alone too.
    """
    wanted = options.experimental_optimization
    if wanted.map_parallelization is False or (
        wanted.map_parallelization is None and wanted.apply_default_optimizations is False
    ):
        return {}
    maps = [op for op in ops_of(dataset) if op.type == "MapDataset" and not _is_synchronous(op)]
    if not maps:
        return {}
    library = v1.get_default_graph().as_graph_def().library
    functions = functions_of(library)
    return {op: _in_parallel for op in maps if not _keeps_state(op.get_attr("f").name, functions)}


def _in_parallel(op: tf.Operation, inputs: list[tf.Tensor]) -> tf.Tensor:
    return tf.raw_ops.ParallelMapDatasetV2(
        input_dataset=inputs[0],
        other_arguments=inputs[1:],
        num_parallel_calls=tf.data.AUTOTUNE,
        f=op.get_attr("f"),
        output_types=op.get_attr("output_types"),
        output_shapes=op.get_attr("output_shapes"),
        use_inter_op_parallelism=op.get_attr("use_inter_op_parallelism"),
        preserve_cardinality=op.get_attr("preserve_cardinality"),
        metadata=op.get_attr("metadata"),
    )


def _is_synchronous(op: tf.Operation) -> bool:
    """Tells whether `map(synchronous=True)` made an op, which TensorFlow 2.18 has."""
    return op.node_def.attr["force_synchronous"].b


def _keeps_state(name: str, functions: Mapping[str, Any]) -> bool:
    """Tells whether TensorFlow holds a function to keep state: any op but assertions may."""
    pending, seen = [name], {name}
    while pending:
        function = functions[pending.pop()]
        for node in function.node_def if function.signature.is_stateful else ():
            definition = tf_private.op_definition(node.op)
            if node.op == "Assert" or (definition is not None and not definition.is_stateful):
                continue
            if node.op not in ("If", "While"):
                return True
            called = set(called_functions(node)) - seen
            seen |= called
            pending += called
    return False
