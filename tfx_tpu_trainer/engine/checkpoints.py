"""Reads checkpoints."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


def latest_checkpoint(model_dir: str) -> str | None:
    """Gives the path of the latest checkpoint of a folder, or `None`."""
    return tf.train.latest_checkpoint(model_dir)


def require_checkpoint(model_dir: str) -> str:
    """Gives the path of the latest checkpoint of a folder.

    Raises:
        ValueError: If there is none.
    """
    path = latest_checkpoint(model_dir)
    if path is None:
        raise ValueError(
            f"Could not find trained model in model_dir: {model_dir}. Train first, or name the "
            "folder of a trained model."
        )
    return path


def global_step_of(model_dir: str) -> int:
    """Gives the global step of the latest checkpoint of a folder; 0 where there is none."""
    path = latest_checkpoint(model_dir)
    if path is None:
        return 0
    reader = tf.train.load_checkpoint(path)
    if not reader.has_tensor(v1.GraphKeys.GLOBAL_STEP):
        return 0
    return int(reader.get_tensor(v1.GraphKeys.GLOBAL_STEP))


def variable_names(model_dir: str) -> list[str]:
    """Gives the names of the variables in the latest checkpoint of a folder."""
    return [name for name, _ in tf.train.list_variables(require_checkpoint(model_dir))]


def variable_value(model_dir: str, name: str) -> np.ndarray:
    """Gives the value of a variable in the latest checkpoint of a folder.

    Raises:
        ValueError: If there is no checkpoint, or no such variable in it.
    """
    path = require_checkpoint(model_dir)
    reader = tf.train.load_checkpoint(path)
    name = name.removesuffix(":0")
    if not reader.has_tensor(name):
        known = ", ".join(sorted(reader.get_variable_to_shape_map()))
        raise ValueError(f"No variable {name!r} in the checkpoint {path}; it has: {known}.")
    return reader.get_tensor(name)


def check_fits_graph(path: str) -> None:
    """Checks that a checkpoint's variables have the shapes of the default graph's.

    Resource variables take a value of any shape from a checkpoint, and a model of other sizes
    then runs on wrong numbers. Variables that the checkpoint lacks are left to the restore.

    Args:
        path: Path of the checkpoint.

    Raises:
        tf.errors.InvalidArgumentError: If a variable has another shape.
    """
    saved = tf.train.load_checkpoint(path).get_variable_to_shape_map()
    wrong = [
        f"{variable.op.name!r}: {saved[variable.op.name]} in the checkpoint, "
        f"{variable.shape.as_list()} in the graph"
        for variable in v1.global_variables()
        if not variable.shape.is_compatible_with(saved.get(variable.op.name, variable.shape))
    ]
    if wrong:
        raise tf.errors.InvalidArgumentError(
            None,
            None,
            f"Restoring from checkpoint {path} failed: a mismatch between it and the graph, at "
            f"{'; '.join(wrong)}. Was the model changed? Use another model_dir, or warm-start.",
        )
