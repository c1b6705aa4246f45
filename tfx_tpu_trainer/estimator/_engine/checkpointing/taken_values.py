"""Which variables begin with a checkpoint's values, and which of both sides stayed without a counterpart."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.graph_nodes import upstream

v1 = tf.compat.v1
_logger = tf.get_logger()

# Ops that read a checkpoint, with the places of their inputs: the checkpoint and the names.
_READERS = {"RestoreV2": (0, 1), "LoadAndRemapMatrix": (0, 1)}
# What a training has besides its model: steps, what optimizers keep, the structure of objects.
_OF_THE_TRAINING = re.compile(
    r"(^|/)(global_step|save_counter|beta[12]_power|iter|iterations|loss_scale)(/|$)"
    r"|OPTIMIZER_SLOT|_CHECKPOINTABLE_OBJECT_GRAPH|(^|/)optimizer(_\d+)?/"
)
_OF_A_PART = re.compile(r"/part_\d+$")
_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class TakenValues:
    """What a model takes from one checkpoint.

    Attributes:
        path: The checkpoint.
        taken: How many variables take their first value from it.
        left_in_model: The model's variables that take none from any checkpoint.
        of_model: How many variables the model has.
        left_in_checkpoint: The checkpoint's variables that nothing takes.
        of_checkpoint: How many variables of a model the checkpoint has.
    """

    path: str
    taken: int
    left_in_model: tuple[str, ...]
    of_model: int
    left_in_checkpoint: tuple[str, ...]
    of_checkpoint: int

    def __str__(self) -> str:
        """Tells it in a line."""
        told = f"Variables initialized from the checkpoint {self.path}: {self.taken}."
        if self.left_in_model:
            told += (
                f" {len(self.left_in_model)} of the model's {self.of_model} are not: "
                f"{_first(self.left_in_model)}."
            )
        if self.left_in_checkpoint:
            told += (
                f" {len(self.left_in_checkpoint)} of the checkpoint's {self.of_checkpoint} are not "
                f"used: {_first(self.left_in_checkpoint)}."
            )
        return told


def log_taken_values() -> None:
    """Logs what the default graph's variables take from checkpoints, if anything stays unmatched.

    A line for each checkpoint: a warning where variables of the model begin with their own values,
    else for information. Silent where everything matches, and where no checkpoint is read.
    """
    for each in find_taken_values():
        if each.left_in_model:
            _logger.warning("%s", each)
        elif each.left_in_checkpoint:
            _logger.info("%s", each)


def find_taken_values() -> list[TakenValues]:
    """Finds what the default graph's variables take from checkpoints.

    The initializers are read, so that it does not matter who set them: `warm_start_from`,
    `tf.compat.v1.train.init_from_checkpoint` in a model_fn or a scaffold_fn. What belongs to the
    training, the global step and what optimizers keep, is left out of both sides.
    """
    taken_from: dict[str, set[str]] = {}
    variables: dict[str, bool] = {}
    for variable in v1.global_variables():
        name = _OF_A_PART.sub("", variable.op.name)
        read = _read_by([variable.initializer])
        variables[name] = variables.get(name, False) or bool(read)
        for path, tensor in read:
            taken_from.setdefault(path, set()).add(tensor)
    if not taken_from:
        return []
    trainable = {_OF_A_PART.sub("", each.op.name) for each in v1.trainable_variables()}
    model = _of_models(variables, trainable or variables)
    left = tuple(sorted(name for name in model if not variables[name]))
    found = []
    for path, tensors in sorted(taken_from.items()):
        try:
            names = [name for name, _ in tf.train.list_variables(path)]
        except (tf.errors.OpError, ValueError):
            # Whoever restores it says what is wrong with it.
            continue
        there = _of_models(names, names)
        found.append(
            TakenValues(
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
    """Returns the names that are no slots: a slot's name is its variable's and more."""
    owners = set(owners)

    def is_slot(name: str) -> bool:
        parts = name.split("/")
        return any("/".join(parts[:length]) in owners for length in range(1, len(parts)))

    return [name for name in names if not (_OF_THE_TRAINING.search(name) or is_slot(name))]


def _first(names: Collection[str]) -> str:
    listed = list(names)
    more = len(listed) - _SHOWN
    return ", ".join(listed[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
