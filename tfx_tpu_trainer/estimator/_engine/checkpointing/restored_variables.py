"""Compares a graph's variables with a checkpoint's: whether they fit, and which are restored from it."""

import dataclasses
import re
from collections.abc import Collection, Container, Iterable, Mapping, Sequence

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.checkpointing.checkpoint_errors import open_checkpoint
from tfx_tpu_trainer.estimator._engine.graph_nodes import upstream

v1 = tf.compat.v1
_logger = tf.get_logger()

# The key that only object-based checkpoints, those of a tf.train.Checkpoint, have.
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# A model with thousands of renamed variables would fill the screen.
_MOST_NAMES = 50


@dataclasses.dataclass(frozen=True)
class Misfit:
    """The differences between a checkpoint and a graph."""

    # Variables that the checkpoint lacks, with their types and shapes.
    missing: tuple[str, ...]
    # Variables that only the checkpoint has: harmless, but with missing ones they show renamings.
    extra: tuple[str, ...]
    # Variables of another type or shape, with both.
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
    """Checks that a checkpoint has every variable of the default graph, in the graph's shape."""
    # TensorFlow would restore a value of any shape into a resource variable, and names only the
    # first of the missing variables.
    if saver is None or saver.saver_def is None:
        wanted = restored_by_default()
    else:
        wanted = restored_by(saver, v1.get_default_graph())
    misfit = find_misfit(path, wanted)
    if misfit is None:
        if _looks_names_up(wanted, open_checkpoint(path).get_variable_to_shape_map()):
            # TensorFlow's saver would add ops, to a graph that is final by then.
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
    """Compares a checkpoint with the variables that are looked up in it."""
    reader = open_checkpoint(path)
    shapes = reader.get_variable_to_shape_map()
    dtypes = reader.get_variable_to_dtype_map()
    keys = {name: name for name in shapes}
    if _looks_names_up(wanted, shapes):
        # Like TensorFlow's saver, by the names that the variables had.
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
    """Returns whether an object-based checkpoint is read by names; a saver of objects uses its keys."""
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


def _listed(names: Sequence[str], most: int = _MOST_NAMES) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


# A variable that was made in parts is saved whole, under its name without the part; a part's slot is saved under a name
# that only TensorFlow knows.
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
    """Returns the values that a saver restores, read from its ops: it may look a variable up under any name."""
    specs = {}
    for op in upstream([graph.get_operation_by_name(saver.saver_def.restore_op_name)]):
        if op.type == "RestoreV2":
            names, slices = (tf.get_static_value(tensor) for tensor in op.inputs[1:3])
            for name, part, output in zip(names, slices, op.outputs, strict=True):
                shape = tf.TensorShape(None) if part else _shape_of_variable_given(output)
                specs[name.decode()] = tf.TensorSpec(shape, output.dtype)
    return specs


def _shape_of_variable_given(tensor: tf.Tensor) -> tf.TensorShape:
    """Returns the shape of the variable to which a restored tensor is assigned unchanged."""
    for consumer in tensor.consumers():
        if consumer.type == "Identity":
            return _shape_of_variable_given(consumer.outputs[0])
        if consumer.type == "AssignVariableOp" and consumer.inputs[0].op.type == "VarHandleOp":
            return tf.TensorShape(consumer.inputs[0].op.get_attr("shape"))
    return tf.TensorShape(None)


# Ops that read a checkpoint, and which of their inputs are the checkpoint and the names.
_READERS = {"RestoreV2": (0, 1), "LoadAndRemapMatrix": (0, 1)}
# Variables of the training, not of the model: steps, optimizer state, the structure of objects.
_OF_THE_TRAINING = re.compile(
    r"^training/|(^|/)(global_step|estimator_global_step|save_counter|beta[12]_power|iter|iterations|loss_scale)(/|$)"
    r"|OPTIMIZER_SLOT|_CHECKPOINTABLE_OBJECT_GRAPH|(^|/)optimizer(_\d+)?/"
)
_PART_AT_THE_END = re.compile(r"/part_\d+$")
_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class RestoredVariables:
    """The variables that a model restores from one checkpoint."""

    # The checkpoint.
    path: str
    # The number of variables whose initial value comes from it.
    taken: int
    # The model's variables that no checkpoint initializes.
    left_in_model: tuple[str, ...]
    # The number of the model's variables.
    of_model: int
    # The checkpoint's variables that nothing reads.
    left_in_checkpoint: tuple[str, ...]
    # The number of a model's variables in the checkpoint.
    of_checkpoint: int

    def __str__(self) -> str:
        """Describes in a line how many variables are restored, and which are left."""
        line = f"Variables initialized from the checkpoint {self.path}: {self.taken}."
        if self.left_in_model:
            line += (
                f" {len(self.left_in_model)} of the model's {self.of_model} are not: "
                f"{_listed(self.left_in_model, _SHOWN)}."
            )
        if self.left_in_checkpoint:
            line += (
                f" {len(self.left_in_checkpoint)} of the checkpoint's {self.of_checkpoint} are not "
                f"used: {_listed(self.left_in_checkpoint, _SHOWN)}."
            )
        return line


def log_restored_variables() -> None:
    """Logs a line for each checkpoint that initializes variables of the default graph, unless all match."""
    for each in find_restored_variables():
        if each.left_in_model:
            _logger.warning("%s", each)
        elif each.left_in_checkpoint:
            _logger.info("%s", each)


def find_restored_variables() -> list[RestoredVariables]:
    """Finds what the default graph's variables read from checkpoints, except the training's own variables."""
    # Reads the initializers, whether `warm_start_from` has set them or `tf.compat.v1.train.init_from_checkpoint` in a
    # model_fn or a scaffold_fn.
    taken_from: dict[str, set[str]] = {}
    variables: dict[str, bool] = {}
    for variable in v1.global_variables():
        name = _PART_AT_THE_END.sub("", variable.op.name)
        read = _read_by([variable.initializer])
        variables[name] = variables.get(name, False) or bool(read)
        for path, tensor in read:
            taken_from.setdefault(path, set()).add(tensor)
    if not taken_from:
        return []
    trainable = {_PART_AT_THE_END.sub("", each.op.name) for each in v1.trainable_variables()}
    model = _of_models(variables, trainable or variables)
    left = tuple(sorted(name for name in model if not variables[name]))
    found = []
    for path, tensors in sorted(taken_from.items()):
        try:
            names = [name for name, _ in tf.train.list_variables(path)]
        except (tf.errors.OpError, ValueError):
            # Restoring it will fail, with an error that explains why.
            continue
        there = _of_models(names, names)
        found.append(
            RestoredVariables(
                path=path,
                taken=len(tensors),
                left_in_model=left,
                of_model=len(model),
                left_in_checkpoint=tuple(sorted(set(there) - tensors)),
                of_checkpoint=len(there),
            )
        )
    return found


def _read_by(nodes: Iterable[tf.Operation]) -> list[tuple[str, str]]:
    """Returns the checkpoints that nodes read, each with a name in it."""
    found = []
    for op in upstream(nodes):
        if op.type not in _READERS:
            continue
        path, names = (tf.get_static_value(op.inputs[at]) for at in _READERS[op.type])
        if path is not None and names is not None:
            found += [(_text(path), _text(name)) for name in names.reshape(-1)]
    return found


def _text(value: object) -> str:
    value = value.item() if hasattr(value, "item") else value
    return value.decode() if isinstance(value, bytes) else str(value)


def _of_models(names: Iterable[str], owners: Collection[str]) -> list[str]:
    """Returns the names that are not an optimizer's slots."""
    # `dense/kernel/Adam` is a slot: cut at a slash, its name begins with the owner `dense/kernel`.
    owners = set(owners)

    def is_slot(name: str) -> bool:
        parts = name.split("/")
        return any("/".join(parts[:length]) in owners for length in range(1, len(parts)))

    return [name for name in names if not (_OF_THE_TRAINING.search(name) or is_slot(name))]
