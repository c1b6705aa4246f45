"""What a saver looks up in a checkpoint."""

from __future__ import annotations

import re

import tensorflow as tf

v1 = tf.compat.v1

# A variable that was made in parts is saved whole, under its name without the part; a slot of a part
# under a name that only TensorFlow knows.
_OF_A_PART = re.compile(r"/part_\d+(/|$)")


def restored_by_default() -> dict[str, tf.TensorSpec]:
    """Returns what the default saver restores in the default graph.

    Returns:
        Name in the checkpoint -> type and shape that the graph wants; the shape is unknown where
        the graph has a part of it only.
    """
    specs = {}
    for variable in v1.global_variables():
        name, shape = variable.op.name, variable.shape
        if _OF_A_PART.search(name):
            whole = variable.to_proto().save_slice_info_def.full_name
            name, shape = (whole, tf.TensorShape(None)) if whole else (name, shape)
        specs[name] = tf.TensorSpec(shape, variable.dtype.base_dtype)
    return specs


def restored_by(saver: v1.train.Saver, graph: tf.Graph) -> dict[str, tf.TensorSpec]:
    """Returns what a saver restores.

    The saver's own ops are read, since a saver may look a variable up under any name.

    Args:
        saver: A saver that is built.
        graph: The graph that it was built in.

    Returns:
        Name in the checkpoint -> type and shape that the graph wants; the shape is unknown where
        the saver slices or reshapes.
    """
    pending = [graph.get_operation_by_name(saver.saver_def.restore_op_name)]
    seen = set()
    specs = {}
    while pending:
        op = pending.pop()
        if op.name in seen:
            continue
        seen.add(op.name)
        if op.type == "RestoreV2":
            names, slices = (tf.get_static_value(tensor) for tensor in op.inputs[1:3])
            for name, part, output in zip(names, slices, op.outputs, strict=True):
                shape = tf.TensorShape(None) if part else _shape_of_variable_given(output)
                specs[name.decode()] = tf.TensorSpec(shape, output.dtype)
        pending.extend(op.control_inputs)
        pending.extend(tensor.op for tensor in op.inputs)
    return specs


def _shape_of_variable_given(tensor: tf.Tensor) -> tf.TensorShape:
    """The shape of the variable to which a restored tensor is assigned, if it is as it stands."""
    for consumer in tensor.consumers():
        if consumer.type == "Identity":
            return _shape_of_variable_given(consumer.outputs[0])
        if consumer.type == "AssignVariableOp" and consumer.inputs[0].op.type == "VarHandleOp":
            return tf.TensorShape(consumer.inputs[0].op.get_attr("shape"))
    return tf.TensorShape(None)
