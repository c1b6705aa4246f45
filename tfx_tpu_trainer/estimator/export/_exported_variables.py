"""The variables of an export: those that the graph wants, those that the checkpoint has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.file_systems import check_is_no_pattern, path_text
from tfx_tpu_trainer.estimator._engine.checkpointing.restored_variables import (
    find_misfit,
    restored_by,
)
from tfx_tpu_trainer.estimator.export._meta_graph import MetaGraph


def find_checkpoint(checkpoint_path: str | None, *, model_dir: str, warm_start: Any = None) -> str:
    """Returns the checkpoint to export, and checks that it is there."""
    if not checkpoint_path and warm_start is not None:
        checkpoint_path = warm_start.ckpt_to_initialize_from
        if tf.io.gfile.isdir(checkpoint_path):
            checkpoint_path = tf.train.latest_checkpoint(checkpoint_path)
    if not checkpoint_path:
        raise ValueError(
            f"Couldn't find trained model at {model_dir}: it has no checkpoint to export. Train "
            "before you export, or name a checkpoint_path."
        )
    checkpoint_path = path_text("checkpoint_path", checkpoint_path)
    check_is_no_pattern("checkpoint_path", checkpoint_path)
    if not tf.io.gfile.exists(f"{checkpoint_path}.index"):
        raise ValueError(
            f"Couldn't find trained model at {checkpoint_path}: this checkpoint does not exist. "
            "Train first, or give the checkpoint_path of a trained model "
            "(tf.train.latest_checkpoint(model_dir) returns it)."
        )
    return checkpoint_path


def check_variables_in_checkpoint(meta_graph: MetaGraph, checkpoint_path: str) -> None:
    """Checks that a checkpoint has every variable that a metagraph restores, in its shape.

    Restoring would not notice another shape: a resource variable takes what it is given.
    """
    misfit = find_misfit(checkpoint_path, restored_variables(meta_graph))
    if misfit is not None:
        raise ValueError(
            "Could not load all requested variables from checkpoint. Please make sure your "
            "model_fn does not expect variables that were not saved in the checkpoint, and builds "
            f"the model as it was trained. With mode `{meta_graph.mode}`, tags "
            f"{list(meta_graph.tags)}: {misfit} Checkpoint: {checkpoint_path}."
        )


def check_same_variables(meta_graph: MetaGraph, first: MetaGraph) -> None:
    """Checks that a further metagraph restores nothing but what the first one saves."""
    missing = sorted(set(restored_variables(meta_graph)) - set(restored_variables(first)))
    if missing:
        raise ValueError(
            f"The graph tagged {list(meta_graph.tags)} has variables that the one tagged "
            f"{list(first.tags)} lacks: {_quoted(missing)}. The SavedModel holds only the "
            "variables of the latter; model_fn must create the same variables, under the same "
            "names, for both."
        )


def restored_variables(meta_graph: MetaGraph) -> dict[str, tf.TensorSpec]:
    """Returns what a metagraph's saver looks up in a checkpoint."""
    return restored_by(meta_graph.saver, meta_graph.graph)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
