"""Whether a SavedModel's variables are all there: told by the sizes of their files, which are not read."""

from __future__ import annotations

import os
import re

import tensorflow as tf

# TensorFlow's protos are stable files of theirs; SavedModel's has no alias under `tf`.
from tensorflow.core.protobuf import saved_model_pb2

from tfx_tpu_trainer._support.file_systems import check_is_no_pattern
from tfx_tpu_trainer.estimator.extending import all_nodes

_VARIABLE_OPS = frozenset({"VarHandleOp", "VariableV2", "Variable"})
_VARIABLES = os.path.join("variables", "variables")
_SHARDS = re.compile(r"\.data-\d{5}-of-(\d{5})$")


def check_variables(path: str, saved_model: saved_model_pb2.SavedModel) -> None:
    """Finds files of variables that are missing, cut off or none.

    A server starts with such a model, and refuses each request.
    """
    if not any(
        node.op in _VARIABLE_OPS
        for meta_graph in saved_model.meta_graphs
        for node in all_nodes(meta_graph.graph_def)
    ):
        return
    prefix = os.path.join(path, _VARIABLES)
    if not tf.io.gfile.exists(f"{prefix}.index"):
        raise _damaged(path, f"it has no {_VARIABLES}.index")
    check_is_no_pattern("path", path)
    try:
        reader = tf.compat.v1.train.NewCheckpointReader(prefix)
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    except Exception as error:  # an OpError or a RuntimeError: it depends on the damage
        reason = str(error).strip().splitlines()[0]
        raise _damaged(path, f"{_VARIABLES}.index can't be read: {reason}") from None
    shards = tf.io.gfile.glob(f"{prefix}.data-*")
    counts = {int(found[1]) for shard in shards if (found := _SHARDS.search(shard))}
    if counts != {len(shards)}:
        raise _damaged(path, f"only {len(shards)} of its files {_VARIABLES}.data-* exist")
    # Strings have no size of their own.
    least = sum(
        dtypes[name].size * tf.TensorShape(shape).num_elements()
        for name, shape in shapes.items()
        if dtypes[name] != tf.string
    )
    there = sum(tf.io.gfile.stat(shard).length for shard in shards)
    if there < least:
        raise _damaged(
            path,
            f"its files {_VARIABLES}.data-* hold {there:,} bytes, but its values need {least:,}",
        )


def _damaged(path: str, damage: str) -> ValueError:
    return ValueError(
        f"The SavedModel at {path} is incomplete: {damage}. Copy its folder again, or export the "
        "model again."
    )
