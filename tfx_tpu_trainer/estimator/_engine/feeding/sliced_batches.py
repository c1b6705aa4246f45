"""Cuts batches out of arrays whole, where a dataset would draw each row and put them together.

`from_tensor_slices(arrays).batch(size)` makes a tensor of each row of each array, and copies all of
them into a batch: for small rows that takes longer than a step of a small model, and several times
as long as to copy a batch at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.feeding.dataset_edits import Edit, ops_of

_BATCHES = ("BatchDatasetV2", "ParallelBatchDataset")


def batches_to_cut_out(dataset: tf.data.Dataset) -> dict[tf.Operation, Edit]:
    """Finds the batches of a dataset that are made of the rows of arrays in their order.

    Between the two may be `repeat` if no batch has rows of two rounds.
    """
    return {op: _cut_out for op in ops_of(dataset) if op.type in _BATCHES and _can_be_cut_out(op)}


def _can_be_cut_out(batch: tf.Operation) -> bool:
    *repeats, rows = _stages_before(batch)
    size, drops = _size_and_drops(batch)
    if rows.type != "TensorSliceDataset" or rows.get_attr("is_files") or drops is None:
        return False
    if not size or size < 1 or not all(map(_is_array, rows.inputs)):
        return False
    lengths = {tensor.shape.as_list()[0] for tensor in rows.inputs}
    return len(lengths) == 1 and not (repeats and lengths.pop() % size)


def _is_array(tensor: tf.Tensor) -> bool:
    """Tells whether a tensor is of a known shape, and its rows are no tensors of their own."""
    return tensor.shape.is_fully_defined() and tensor.dtype not in (tf.variant, tf.resource)


def _cut_out(batch: tf.Operation, inputs: list[tf.Tensor]) -> tf.Tensor:
    del inputs  # What makes the rows is passed over.
    *repeats, rows = _stages_before(batch)
    size, drops = _size_and_drops(batch)
    length = rows.inputs[0].shape.as_list()[0]
    whole = length // size
    spec = {name: batch.get_attr(name) for name in ("output_types", "output_shapes")}
    with tf.device("/device:CPU:0"):  # Where datasets are: an accelerator would copy the arrays.
        stacked = [
            tf.reshape(tensor[: whole * size], [whole, size, *tensor.shape.as_list()[1:]])
            for tensor in rows.inputs
        ]
        rest = [tensor[whole * size :] for tensor in rows.inputs]
    made = tf.raw_ops.TensorSliceDataset(
        components=stacked, output_shapes=[tensor.shape[1:] for tensor in stacked]
    )
    if length % size and not drops:
        last = tf.raw_ops.TensorDataset(
            components=rest, output_shapes=[tensor.shape for tensor in rest]
        )
        made = tf.raw_ops.ConcatenateDataset(input_dataset=made, another_dataset=last, **spec)
    for repeat in reversed(repeats):
        made = tf.raw_ops.RepeatDataset(input_dataset=made, count=repeat.inputs[1], **spec)
    return made


def _stages_before(batch: tf.Operation) -> Iterator[tf.Operation]:
    """Goes upstream from a batch, past what repeats its rows, to what makes them."""
    stage = batch.inputs[0].op
    while stage.type == "RepeatDataset":
        yield stage
        stage = stage.inputs[0].op
    yield stage


def _size_and_drops(batch: tf.Operation) -> tuple[int | None, bool | None]:
    """Returns a batch's size, and whether a short one is dropped; `None` for what is not known."""
    drops = batch.inputs[3 if batch.type == "ParallelBatchDataset" else 2]
    return tf.get_static_value(batch.inputs[1]), tf.get_static_value(drops)
