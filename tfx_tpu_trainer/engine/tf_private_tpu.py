"""The private TensorFlow names that writing a TPU graph cannot do without.

Everything else of a TPU export is public: `tf.compat.v1.tpu.rewrite`,
`tf.raw_ops.TPUPartitionedCall` and `tf.raw_ops.TPUOrdinalSelector` around a `tf.function`.

`tpu._TPUInferenceContext`:
    TPU embedding columns look for it to know that they serve, and then look ids up on the host.
    If it goes away: such columns cannot be exported for TPU; everything else can.

`tpu.prune_unconnected_ops_from_xla`:
    Variables and placeholders that nothing reads must not reach the TPU compiler.
    If it goes away: clear the `_tpu_replicate` attribute in the GraphDef.

`op_def_registry.get`:
    A NodeDef says nothing of the types that its op always has, as the string of `StringLength`.
    If it goes away: read the definitions from a MetaGraphDef's `stripped_op_list`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry
from tensorflow.python.tpu import tpu


@contextlib.contextmanager
def inference_context() -> Iterator[None]:
    """Marks the ops made inside as those of a model that serves on a TPU.

    Nothing is checked or moved: the mark is only there to be asked for, by TPU embedding columns.
    """
    context = tpu._TPUInferenceContext("tpu_inference", check_ops=False)
    context.Enter()
    try:
        yield
    finally:
        context.Exit()


def prune_unconnected_ops(graph: tf.Graph) -> None:
    """Takes variables and placeholders that nothing reads out of the TPU computation of `graph`.

    Args:
        graph: The graph in which `tf.compat.v1.tpu.rewrite` was called.
    """
    tpu.prune_unconnected_ops_from_xla(graph)


def op_definition(name: str) -> Any | None:
    """Returns the OpDef of an op type, `None` where this TensorFlow has no such op.

    Args:
        name: The op type.
    """
    return op_def_registry.get(name)
