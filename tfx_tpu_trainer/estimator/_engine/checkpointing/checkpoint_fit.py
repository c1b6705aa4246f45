"""Whether a checkpoint fits the graph that is to be restored from it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Container, Iterable, Mapping, Sequence

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.checkpointing.checkpoint_damage import open_checkpoint
from tfx_tpu_trainer.estimator._engine.graph_nodes import upstream

v1 = tf.compat.v1

# What a checkpoint of a tf.train.Checkpoint, an object-based one, has besides values.
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# A model of thousands of variables that was renamed would fill the screen.
_MOST_NAMES = 50


@dataclasses.dataclass(frozen=True)
class Misfit:
    """In what a checkpoint and a graph differ.

    Attributes:
        missing: Variables that the checkpoint lacks, with their types and shapes.
        extra: Variables of the checkpoint that the graph has no use for. By themselves they are
            no harm; beside missing ones they show what was renamed.
        changed: Variables of another type or shape, with both.
    """

    missing: tuple[str, ...]
    extra: tuple[str, ...]
    changed: tuple[str, ...]

    def __str__(self) -> str:
        """Lists them."""
        parts = {
            "Missing in the checkpoint": self.missing,
            "In the checkpoint only": self.extra,
            "Of another type or shape": self.changed,
        }
        return " ".join(f"{what}: {_listed(names)}." for what, names in parts.items() if names)


def check_fits_graph(path: str, saver: v1.train.Saver | None = None) -> None:
    """Checks that a checkpoint has every variable of the default graph, in the graph's shape.

    Resource variables take a value of any shape from a checkpoint, and a model of other sizes
    then runs on wrong numbers; of variables that are missing, TensorFlow names the first.
    """
    if saver is None or saver.saver_def is None:
        wanted = restored_by_default()
    else:
        wanted = restored_by(saver, v1.get_default_graph())
    misfit = find_misfit(path, wanted)
    if misfit is None:
        if _looks_names_up(wanted, open_checkpoint(path).get_variable_to_shape_map()):
            # TensorFlow's saver would make new ops, in a graph that is final by then.
            raise ValueError(
                f"The checkpoint {path} is object-based, from a tf.train.Checkpoint, but the model "
                "looks its variables up by name. Give its Scaffold saver=tf.train.Checkpoint(...) "
                "with the same objects, or warm-start from the checkpoint in another model_dir."
            )
        return
    error = tf.errors.NotFoundError if misfit.missing else tf.errors.InvalidArgumentError
    raise error(
        None,
        None,
        f"Restoring from checkpoint {path} failed: a mismatch between it and the graph. {misfit} "
        "The model that wrote it was another one, or had other features. Use another model_dir, or "
        "warm-start from this checkpoint.",
    )


def find_misfit(path: str, wanted: Mapping[str, tf.TensorSpec]) -> Misfit | None:
    """Compares a checkpoint with what is looked up in it.

    Where names are looked up in an object-based checkpoint, they are those that its variables
    had: TensorFlow's saver goes by them as well.
    """
    reader = open_checkpoint(path)
    shapes = reader.get_variable_to_shape_map()
    dtypes = reader.get_variable_to_dtype_map()
    keys = {name: name for name in shapes}
    if _looks_names_up(wanted, shapes):
        by_name = tf_private.object_graph_keys(reader.get_tensor(_OBJECT_GRAPH))
        keys = {name: key for name, key in by_name.items() if key in shapes}
    saved = {name: _written(dtypes[key], shapes[key]) for name, key in keys.items()}
    missing = {name: spec for name, spec in wanted.items() if name not in saved}
    changed = [
        f"{name!r}: {saved[name]} in the checkpoint, {_in_graph(spec)} in the graph"
        for name, spec in wanted.items()
        if name in saved
        and not (
            dtypes[keys[name]] == spec.dtype and spec.shape.is_compatible_with(shapes[keys[name]])
        )
    ]
    if not missing and not changed:
        return None
    return Misfit(
        missing=tuple(f"{name!r} {_in_graph(missing[name])}" for name in sorted(missing)),
        extra=tuple(f"{name!r} {saved[name]}" for name in sorted(set(saved) - set(wanted))),
        changed=tuple(sorted(changed)),
    )


def _looks_names_up(wanted: Iterable[str], keys: Container[str]) -> bool:
    """Whether names are looked up in an object-based checkpoint: a saver of objects uses its keys."""
    return _OBJECT_GRAPH in keys and not any(name in keys for name in wanted)


def key_of(path: str, name: str) -> str | None:
    """Returns the key of a variable in a checkpoint, object-based or not."""
    reader = open_checkpoint(path)
    if reader.has_tensor(name):
        return name
    if not reader.has_tensor(_OBJECT_GRAPH):
        return None
    return tf_private.object_graph_keys(reader.get_tensor(_OBJECT_GRAPH)).get(name)


def _written(dtype: tf.DType, shape: Sequence[int]) -> str:
    return f"{dtype.name} {list(shape)}"


def _in_graph(spec: tf.TensorSpec) -> str:
    known = spec.shape.rank is not None
    return _written(spec.dtype, spec.shape.as_list()) if known else f"a part, {spec.dtype.name}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


# A variable that was made in parts is saved whole, under its name without the part; a slot of a part
# under a name that only TensorFlow knows.
_OF_A_PART = re.compile(r"/part_\d+(/|$)")


def restored_by_default() -> dict[str, tf.TensorSpec]:
    """Returns what the default saver restores in the default graph."""
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
    """
    specs = {}
    for op in upstream([graph.get_operation_by_name(saver.saver_def.restore_op_name)]):
        if op.type == "RestoreV2":
            names, slices = (tf.get_static_value(tensor) for tensor in op.inputs[1:3])
            for name, part, output in zip(names, slices, op.outputs, strict=True):
                shape = tf.TensorShape(None) if part else _shape_of_variable_given(output)
                specs[name.decode()] = tf.TensorSpec(shape, output.dtype)
    return specs


def _shape_of_variable_given(tensor: tf.Tensor) -> tf.TensorShape:
    """The shape of the variable to which a restored tensor is assigned, if it is unchanged."""
    for consumer in tensor.consumers():
        if consumer.type == "Identity":
            return _shape_of_variable_given(consumer.outputs[0])
        if consumer.type == "AssignVariableOp" and consumer.inputs[0].op.type == "VarHandleOp":
            return tf.TensorShape(consumer.inputs[0].op.get_attr("shape"))
    return tf.TensorShape(None)
