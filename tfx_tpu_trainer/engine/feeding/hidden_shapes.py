"""Keeps TensorFlow's graph optimizer from believing what a model says of its batch.

A model that reshapes to `params["batch_size"]` rows tells shape inference that every batch has as
many, short ones included: the optimizer then drops the reshape as useless, and counts rows that
are not there. What reads a tensor through a detour that the optimizer can't see through says
nothing about what stands before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def hide(tensors: Sequence[tf.Tensor], shapes: Sequence[Any]) -> list[tf.Tensor]:
    """Passes tensors through an optional, which shape inference does not look into.

    Args:
        tensors: The tensors.
        shapes: The shapes that their readers are told, true or less than the truth.

    Returns:
        The same values.
    """
    if not tensors:
        return []
    return tf.raw_ops.OptionalGetValue(
        optional=tf.raw_ops.OptionalFromValue(components=list(tensors)),
        output_types=[tensor.dtype for tensor in tensors],
        output_shapes=list(shapes),
    )


def hide_open_batches(structure: Any) -> Any:
    """Hides what is not known of the shapes in a nested structure.

    Python code sees the shapes as before; the optimizer sees none, not even a rank, as one
    unknown dimension beside known ones can be reckoned back from a reshape.

    Args:
        structure: Nested structure of tensors; sparse and ragged ones, `None` and tensors whose
            shapes are known are left as they are.

    Returns:
        The structure with the tensors to read in their place.
    """
    leaves = tf.nest.flatten(structure)
    hidden = [i for i, leaf in enumerate(leaves) if _is_open(leaf)]
    if not hidden:
        return structure
    unknown = [tf.TensorShape(None)] * len(hidden)
    for i, tensor in zip(hidden, hide([leaves[i] for i in hidden], unknown)):
        tensor.set_shape(leaves[i].shape)
        leaves[i] = tensor
    return tf.nest.pack_sequence_as(structure, leaves)


def _is_open(leaf: Any) -> bool:
    return isinstance(leaf, tf.Tensor) and not leaf.shape.is_fully_defined()
