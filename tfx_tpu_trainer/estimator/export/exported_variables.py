"""The variables of an export: those that the graph wants, those that the checkpoint has."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from tfx_tpu_trainer.estimator.export.meta_graph import MetaGraph

v1 = tf.compat.v1


def check_checkpoint(checkpoint_path: str | None) -> str:
    """Checks that there is a checkpoint, and gives its path.

    Raises:
        ValueError: If none is given, or the path holds none.
    """
    if not checkpoint_path:
        raise ValueError(
            "Couldn't find trained model: there is no checkpoint to export. Train first, or give "
            "checkpoint_path."
        )
    if not tf.io.gfile.exists(f"{checkpoint_path}.index"):
        raise ValueError(
            f"Couldn't find trained model at {checkpoint_path}: there is no such checkpoint. "
            "Train first, or give the checkpoint_path of a trained model "
            "(as tf.train.latest_checkpoint(model_dir) gives it)."
        )
    return checkpoint_path


def check_variables_in_checkpoint(meta_graph: MetaGraph, checkpoint_path: str) -> None:
    """Checks that a checkpoint has every variable that a metagraph restores, in its shape.

    Restoring would not notice another shape: a resource variable takes what it is given.

    Raises:
        ValueError: If it lacks some, or has some in another shape or type; it lists them.
    """
    reader = tf.train.load_checkpoint(checkpoint_path)
    shapes = reader.get_variable_to_shape_map()
    dtypes = reader.get_variable_to_dtype_map()
    wanted = restored_variables(meta_graph)
    missing = sorted(set(wanted) - set(shapes))
    if missing:
        raise ValueError(
            "Could not load all requested variables from checkpoint. Please make sure your "
            "model_fn does not expect variables that were not saved in the checkpoint. "
            f"Missing with mode `infer`, tags {list(meta_graph.tags)}: {_quoted(missing)}. "
            f"Checkpoint: {checkpoint_path}, which has: {_quoted(sorted(shapes))}."
        )
    changed = [
        f"{name!r} is {spec.dtype.name} {spec.shape}, there {dtypes[name].name} {shapes[name]}"
        for name, spec in sorted(wanted.items())
        if dtypes[name] != spec.dtype or not spec.shape.is_compatible_with(shapes[name])
    ]
    if changed:
        raise ValueError(
            "Could not load all requested variables from checkpoint: "
            f"{'; '.join(changed)}. Checkpoint: {checkpoint_path}. Build the model for export as "
            "it was trained."
        )


def check_same_variables(meta_graph: MetaGraph, first: MetaGraph) -> None:
    """Checks that a further metagraph restores nothing but what the first one saves.

    Raises:
        ValueError: If it restores more; it lists what.
    """
    missing = sorted(set(restored_variables(meta_graph)) - set(restored_variables(first)))
    if missing:
        raise ValueError(
            f"The graph tagged {list(meta_graph.tags)} has variables which the one tagged "
            f"{list(first.tags)} has not: {_quoted(missing)}. The SavedModel holds the variables "
            "of the latter only; model_fn must make the same ones, under the same names, for both."
        )


def restored_variables(meta_graph: MetaGraph) -> dict[str, tf.TensorSpec]:
    """Gives what a metagraph's saver looks up in a checkpoint.

    The saver's own ops are read, since a saver may look a variable up under any name.

    Args:
        meta_graph: A metagraph.

    Returns:
        Name in the checkpoint -> type and shape that the graph wants; the shape is unknown where
        the saver slices or reshapes.
    """
    graph = meta_graph.graph
    pending = [graph.get_operation_by_name(meta_graph.saver.saver_def.restore_op_name)]
    seen = set()
    variables = {}
    while pending:
        op = pending.pop()
        if op.name in seen:
            continue
        seen.add(op.name)
        if op.type == "RestoreV2":
            names, slices = (tf.get_static_value(tensor) for tensor in op.inputs[1:3])
            for name, part, output in zip(names, slices, op.outputs, strict=True):
                shape = tf.TensorShape(None) if part else _shape_of_variable_given(output)
                variables[name.decode()] = tf.TensorSpec(shape, output.dtype)
        pending.extend(op.control_inputs)
        pending.extend(tensor.op for tensor in op.inputs)
    return variables


def _shape_of_variable_given(tensor: tf.Tensor) -> tf.TensorShape:
    """The shape of the variable to which a restored tensor is assigned, if it is as it stands."""
    for consumer in tensor.consumers():
        if consumer.type == "Identity":
            return _shape_of_variable_given(consumer.outputs[0])
        if consumer.type == "AssignVariableOp" and consumer.inputs[0].op.type == "VarHandleOp":
            return tf.TensorShape(consumer.inputs[0].op.get_attr("shape"))
    return tf.TensorShape(None)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
