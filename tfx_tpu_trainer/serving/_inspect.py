"""What a SavedModel holds, read from its proto alone: quick, and safe on machines that can't run it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_tpu_trainer.estimator.extending import SUM, all_nodes
from tfx_tpu_trainer.serving._saved_model_file import read_saved_model

# TensorFlow keeps initialisers among the signatures, under names that start like this.
_INTERNAL_SIGNATURE_PREFIX = "__saved_model"

# Ops that only a TPU runs and whose names don't say TPU.
_TPU_ONLY_OPS = frozenset({SUM, "AllToAll", "CollectivePermute"})


class TensorDescription(NamedTuple):
    """A signature's input or output.

    Attributes:
        dtype: as TensorFlow names it, for instance "float32" or "string".
        shape: one entry for each axis, None where it is open; None if even the rank is unknown.
    """

    dtype: str
    shape: tuple[int | None, ...] | None

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.dtype}<unknown rank>"
        return (
            f"{self.dtype}[{', '.join('?' if size is None else str(size) for size in self.shape)}]"
        )


@dataclasses.dataclass(frozen=True)
class SignatureDescription:
    """A signature's tensors.

    Attributes:
        inputs: key -> dtype and shape.
        outputs: key -> dtype and shape.
        method_name: what TensorFlow Serving goes by, as "tensorflow/serving/predict".
    """

    inputs: Mapping[str, TensorDescription]
    outputs: Mapping[str, TensorDescription]
    method_name: str = ""


@dataclasses.dataclass(frozen=True)
class MetaGraphDescription:
    """One metagraph of a SavedModel.

    Attributes:
        tags: the tags it is loaded by, sorted.
        signatures: name -> signature.
        num_ops: number of nodes, those in its functions included.
        tpu_ops: op types in it that only a TPU host runs, sorted.
    """

    tags: tuple[str, ...]
    signatures: Mapping[str, SignatureDescription]
    num_ops: int
    tpu_ops: tuple[str, ...] = ()

    @property
    def has_tpu_ops(self) -> bool:
        """Whether it needs a TPU host."""
        return bool(self.tpu_ops)


def describe_saved_model(path: str | bytes | os.PathLike[str]) -> tuple[MetaGraphDescription, ...]:
    """Describes each metagraph of a SavedModel without loading it.

    Examples:
        >>> from tfx_tpu_trainer.serving import describe_saved_model
        >>> import tensorflow as tf
        >>> class Double(tf.Module):
        ...     @tf.function(input_signature=[tf.TensorSpec([None], name="x")])
        ...     def __call__(self, x):
        ...         return {"doubled": 2 * x}
        >>> tf.saved_model.save(Double(), "double")
        >>> (metagraph,) = describe_saved_model("double")
        >>> metagraph.tags, metagraph.has_tpu_ops
        (('serve',), False)
        >>> print(metagraph.signatures["serving_default"].inputs["x"])
        float32[?]

    Args:
        path: folder with `saved_model.pb` or `saved_model.pbtxt`.

    Returns:
        One description a metagraph, in the file's order.

    Raises:
        FileNotFoundError: no such folder, or no SavedModel in it.
        ValueError: the file is not a SavedModel.
    """
    return tuple(
        describe_meta_graph(meta_graph) for meta_graph in read_saved_model(path).meta_graphs
    )


def describe_meta_graph(meta_graph: tf.compat.v1.MetaGraphDef) -> MetaGraphDescription:
    """Describes one metagraph of a SavedModel's proto."""
    ops = [node.op for node in all_nodes(meta_graph.graph_def)]
    return MetaGraphDescription(
        tags=tuple(sorted(meta_graph.meta_info_def.tags)),
        signatures={
            name: SignatureDescription(
                inputs=_tensors(signature.inputs),
                outputs=_tensors(signature.outputs),
                method_name=signature.method_name,
            )
            for name, signature in sorted(meta_graph.signature_def.items())
            if not name.startswith(_INTERNAL_SIGNATURE_PREFIX)
        },
        num_ops=len(ops),
        tpu_ops=tuple(sorted({op for op in ops if "TPU" in op or op in _TPU_ONLY_OPS})),
    )


def _tensors(tensor_infos: Mapping[str, Any]) -> dict[str, TensorDescription]:
    return {
        key: TensorDescription(
            dtype=_dtype_name(info.dtype),
            shape=_shape(info.tensor_shape),
        )
        for key, info in sorted(tensor_infos.items())
    }


def _dtype_name(number: int) -> str:
    try:
        return tf.dtypes.as_dtype(number).name
    except TypeError:
        # Of a newer TensorFlow than this.
        return f"type {number}"


def _shape(shape: Any) -> tuple[int | None, ...] | None:
    if shape.unknown_rank:
        return None
    return tuple(None if axis.size < 0 else axis.size for axis in shape.dim)
