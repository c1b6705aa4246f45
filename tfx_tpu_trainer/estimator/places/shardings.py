"""How tensors are cut over the cores of one replica, by XLA's shardings, and which cuts are refused.

`xla_sharding` (`tensorflow.python.compiler.xla.experimental`) leaves an `OpSharding` on the ops that it
annotates: in the attribute `_XlaSharding`, and in `sharding` of an `XlaSharding` op. Only a TPU, and a
preflight, cuts anything; an emulated replica is one core.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

# A wire format: its fields keep their numbers from release to release.
from tensorflow.compiler.xla import xla_data_pb2

from tfx_tpu_trainer.estimator._engine.source_lines import source_line
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate
from tfx_tpu_trainer.estimator.places.ops_on_tpu import nodes_of_step

ATTRIBUTE = "_XlaSharding"
"""The attribute in which any op may declare how its output is partitioned."""

_VARIABLE = "VarHandleOp"
_READ = "ReadVariableOp"


def sharding_of(node: Any) -> xla_data_pb2.OpSharding | None:
    """Returns how the first output of an op is cut, `None` where nothing says so."""
    serialized = node.attr[ATTRIBUTE].s if ATTRIBUTE in node.attr else b""
    if node.op == "XlaSharding" and not serialized:
        serialized = node.attr["sharding"].s
    if not serialized:
        return None
    sharding = xla_data_pb2.OpSharding.FromString(serialized)
    if sharding.type == xla_data_pb2.OpSharding.TUPLE:
        return sharding.tuple_shardings[0] if sharding.tuple_shardings else None
    return sharding


def replicated() -> xla_data_pb2.OpSharding:
    """Returns the sharding of what every core holds whole."""
    return xla_data_pb2.OpSharding(type=xla_data_pb2.OpSharding.REPLICATED)


def tiled(counts: Sequence[int]) -> xla_data_pb2.OpSharding:
    """Returns the sharding of a tensor that is cut."""
    return xla_data_pb2.OpSharding(
        type=xla_data_pb2.OpSharding.OTHER,
        tile_assignment_dimensions=list(counts),
        tile_assignment_devices=range(math.prod(counts)),
    )


def parts(sharding: xla_data_pb2.OpSharding | None, rank: int) -> list[int]:
    """Returns the number of parts along each dimension."""
    if sharding is None or sharding.type != xla_data_pb2.OpSharding.OTHER:
        return [1] * rank
    counts = list(sharding.tile_assignment_dimensions)
    return [*counts, *([1] * rank)][:rank]


def misfit(
    name: str, shape: Sequence[int | None], sharding: xla_data_pb2.OpSharding | None, *, cores: int
) -> str | None:
    """Says why a tensor can't be cut so.

    XLA itself pads what does not divide; the padding is computed with on each core, so it is refused.
    """
    if sharding is None or sharding.type != xla_data_pb2.OpSharding.OTHER:
        return None
    annotated = math.prod(sharding.tile_assignment_dimensions)
    if annotated not in (1, cores):
        return (
            f"{name!r} is sharded over {annotated} cores, but a replica has {cores}: set "
            f"TPUConfig(num_cores_per_replica={annotated}), or change the annotation."
        )
    return not_divisible(name, shape, parts(sharding, len(shape)))


def not_divisible(name: str, shape: Sequence[int | None], counts: Sequence[int]) -> str | None:
    """Says which dimension of a tensor its parts do not divide."""
    for dimension, (size, count) in enumerate(zip(shape, counts)):
        if size is not None and size % count:
            up = -(-size // count) * count
            return (
                f"Dimension {dimension} of {name!r} has the size {size}, which is not divisible by "
                f"{count} partitions: pad it to {up}, or partition it differently."
            )
    return None


def variable_shardings(nodes: Sequence[Any]) -> dict[str, xla_data_pb2.OpSharding]:
    """Returns how the variables of a step are cut, as far as the model says so."""
    by_name = {node.name: node for node in nodes}
    found: dict[str, xla_data_pb2.OpSharding] = {}
    for node in nodes:
        sharding = sharding_of(node)
        variable = _variable_read_by(node, by_name)
        if sharding is not None and variable is not None and variable not in found:
            found[variable] = sharding
    for node in nodes:
        if node.op == _VARIABLE and (sharding := sharding_of(node)) is not None:
            found[node.name] = sharding
    return found


def check_shardings(template: ModelTemplate, *, cores: int) -> None:
    """Refuses a step whose annotated tensors can't be cut evenly over the cores of a replica."""
    if cores == 1:
        return
    for op, node, _ in nodes_of_step(template):
        # Of ops in functions the shapes are not at hand; a preflight checks them too.
        sharding = sharding_of(node)
        if sharding is None:
            continue
        wrong = misfit(op.name, _shape(op), sharding, cores=cores)
        if wrong is not None:
            raise ValueError(f"{wrong} ({source_line(op) or 'source line unknown'})")


def _shape(op: tf.Operation) -> Sequence[int | None]:
    if op.type == _VARIABLE:
        return tf.TensorShape(op.get_attr("shape")).as_list()
    shape = op.outputs[0].shape
    return shape.as_list() if shape.rank is not None else []


def _variable_read_by(node: Any, by_name: Mapping[str, Any]) -> str | None:
    """Returns the variable whose unchanged value an op hands on."""
    while node is not None and node.op in ("XlaSharding", "Identity", _READ):
        source = by_name.get(node.input[0].split(":")[0])
        if node.op == _READ:
            return source.name if source is not None and source.op == _VARIABLE else None
        node = source
    return None
