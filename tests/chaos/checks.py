"""Checks a training's files after it was killed, or not."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from tests.chaos.attempt import ARCHIVE, NODE, Plan
from tests.chaos.counted_model import COUNTS
from tfx_tpu_trainer.components.evaluation import read_eval_metrics
from tfx_tpu_trainer.estimator._engine.checkpointing import checkpoints

Values = Mapping[str, np.ndarray]
"""Variables by name."""


def half_written(root: Path, *, thorough: bool, is_pushing: bool = False) -> list[str]:
    """Finds half-written files among those that have the name by which readers look for them.

    Args:
        root: Where to look; it may change meanwhile.
        thorough: Whether values are read as well. Else only what is quick is looked at.
        is_pushing: Whether TFX's Pusher is at work, or was killed: it copies the model into its
            artifact file by file, and until it ends well nobody is told of that artifact. Defaults to
            `False`: it has ended, or has not begun.

    Returns:
        A line for each file that is not whole.
    """
    found = []
    for path in _final_files(root, {ARCHIVE} if is_pushing else set()):
        try:
            problem = _problem(path, thorough=thorough)
        except FileNotFoundError:
            # Removed or replaced since it was listed.
            continue
        if problem:
            found.append(f"{path}: {problem}")
    return found


def _final_files(root: Path, without: Set[str]) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = [
            name
            for name in folders
            if not (name.startswith((".tmp-", "temp-")) or "_temp" in name or name in without)
        ]
        for name in names:
            if not name.startswith(".tmp-") and ".tempstate" not in name and ".tmp" not in name:
                yield Path(folder) / name


def _problem(path: Path, *, thorough: bool) -> str | None:
    if path.suffix == ".json":
        try:
            json.loads(path.read_text())
        except ValueError as error:
            return str(error)
    elif path.name == "saved_model.pb":
        return _saved_model_problem(path, thorough=thorough)
    elif path.name == "checkpoint" and thorough:
        named = tf.train.latest_checkpoint(str(path.parent))
        return None if named else "names a checkpoint that is not there"
    elif path.suffix == ".index" and thorough and path.parent.name != "variables":
        return _values_problem(path)
    return None


def _saved_model_problem(path: Path, *, thorough: bool) -> str | None:
    content = path.read_bytes()
    try:
        model = saved_model_pb2.SavedModel.FromString(content)
    except Exception as error:
        return str(error)
    if not model.meta_graphs:
        return "has no metagraph"
    # Read after the file: a folder that is replaced as a whole is replaced with it.
    index = path.parent / "variables" / "variables.index"
    assets = {asset.filename for graph in model.meta_graphs for asset in graph.asset_file_def}
    absent = [name for name in sorted(assets) if not (path.parent / "assets" / name).exists()]
    if (absent or not index.exists()) and path.exists() and path.read_bytes() == content:
        return f"has no {', '.join(absent) or 'variables'}"
    return _values_problem(index) if thorough else None


def _values_problem(index: Path) -> str | None:
    try:
        read_values(index)
    except (tf.errors.OpError, RuntimeError, ValueError, IndexError) as error:
        return f"its values can't be read: {error}"
    return None


def read_values(index: Path) -> Values:
    """Reads all variables of a checkpoint.

    Args:
        index: Its index file. Python can read only the description of an input position.
    """
    reader = tf.train.load_checkpoint(str(index).removesuffix(".index"))
    types = reader.get_variable_to_dtype_map()
    return {name: reader.get_tensor(name) for name in types if types[name] != tf.variant}


def unequal(values: Values, expected: Values) -> list[str]:
    """Returns the names of the variables that are not equal to the last bit, or are missing."""
    return sorted(
        name
        for name in {*values, *expected}
        if name not in values
        or name not in expected
        or values[name].dtype != expected[name].dtype
        or values[name].shape != expected[name].shape
        or values[name].tobytes() != expected[name].tobytes()
    )


def rows_problem(values: Values, plan: Plan, step: int) -> str | None:
    """Describes a problem with the rows that a checkpoint has seen, if any.

    Each epoch has each row once: no row has come twice as long as another one has not come once.

    Args:
        values: The checkpoint's.
        plan: The training.
        step: The checkpoint's step.
    """
    counts = values[COUNTS]
    if counts.sum() != step * plan.batch:
        return f"{counts.sum():g} rows seen in {step} steps of {plan.batch}"
    if counts.max() - counts.min() > 1:
        return f"one row seen {counts.max():g} times, another one {counts.min():g} times"
    return None


def latest_checkpoint(root: Path) -> str | None:
    """Finds the checkpoint from which another attempt would continue.

    Args:
        root: The root of checkpoint folders.
    """
    for folder in (root / NODE).glob("*"):
        if ".aside-" not in folder.name and (found := tf.train.latest_checkpoint(str(folder))):
            return found
    return None


@dataclasses.dataclass(frozen=True)
class Ending:
    """The results of a training and its push.

    Attributes:
        checkpoint: Variables of the last checkpoint.
        exported: Those of the SavedModel.
        pushed: Those of the newest pushed version.
        metrics: The metrics by name.
        files: The files of the model's folder.
        leftovers: Temporary names and checkpoint folders that still exist.
        step: The last checkpoint's step.
    """

    checkpoint: Values
    exported: Values
    pushed: Values
    metrics: Mapping[str, Any]
    files: tuple[str, ...]
    leftovers: tuple[str, ...]
    step: int

    @classmethod
    def read(cls, outputs: Path, checkpoint_root: Path, destination: Path | None) -> Ending:
        """Reads it.

        Args:
            outputs: The folder of the artifacts.
            checkpoint_root: The root of checkpoint folders.
            destination: Folder of the pushed versions; `None` if nothing was pushed.
        """
        last = checkpoints.latest_checkpoint(str(outputs / "model_run"))
        if last is None:
            raise FileNotFoundError(f"There is no checkpoint in {outputs}")
        metrics = read_eval_metrics(str(outputs / "model"))
        if metrics is None:
            raise FileNotFoundError(f"There are no metrics in {outputs / 'model'}")
        variables = Path("variables") / "variables.index"
        versions = sorted(destination.glob("*/saved_model.pb")) if destination else []
        folders = [outputs / "model", outputs / "model_run", outputs / "evaluation"]
        temporary = [p for folder in (outputs, *folders) for p in folder.glob(".tmp-*")]
        return cls(
            checkpoint=read_values(Path(f"{last}.index")),
            exported=read_values(outputs / "model" / "Format-Serving" / variables),
            pushed=read_values(versions[-1].parent / variables) if destination else {},
            metrics=dict(metrics.overall),
            files=tuple(
                sorted(
                    str(path.relative_to(outputs / "model"))
                    for path in (outputs / "model").rglob("*")
                    if path.is_file()
                )
            ),
            leftovers=tuple(map(str, [*temporary, *(checkpoint_root / NODE).glob("*")])),
            step=checkpoints.global_step_of(str(outputs / "model_run")),
        )

    def differences(self, expected: Ending) -> list[str]:
        """Returns a line for each thing that is not as in an uninterrupted run."""
        found = []
        for part in ("checkpoint", "exported", "pushed"):
            if names := unequal(getattr(self, part), getattr(expected, part)):
                found.append(f"{part}: {', '.join(names[:3])} differ")
        found += [
            f"{part}: {getattr(self, part)} instead of {getattr(expected, part)}"
            for part in ("metrics", "files", "step")
            if getattr(self, part) != getattr(expected, part)
        ]
        return found


def unequal_rows(ending: Ending, expected: Ending) -> bool:
    """Returns whether rows were seen another number of times than in an uninterrupted run."""
    return ending.checkpoint[COUNTS].tobytes() != expected.checkpoint[COUNTS].tobytes()
