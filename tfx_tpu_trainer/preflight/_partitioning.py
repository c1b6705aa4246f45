"""A program for replicas that are spread over several cores: how its variables and inputs are cut.

The compiler cuts the rest by itself (SPMD). What it is not told of is whole on every core, as in a TPU's
own runtime: variables and inputs without an annotation, and results that replace no variable.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

# A wire format: its fields keep their numbers from release to release.
from tensorflow.compiler.xla import xla_data_pb2

from tfx_tpu_trainer.estimator.extending import shardings
from tfx_tpu_trainer.preflight._hlo_module import HloModule
from tfx_tpu_trainer.preflight._results import Problem
from tfx_tpu_trainer.preflight._step_graph import StepGraph

v1 = tf.compat.v1

_VARIABLE = "VarHandleOp"


def partition(module: HloModule, step: StepGraph, nodes: Sequence[v1.NodeDef]) -> Problem | None:
    """Writes into a program how its inputs and results are cut."""
    if step.num_partitions > 1:
        of_variables = shardings.variable_shardings(nodes)
        given = [
            shardings.tiled(step.input_partitions[name]) if name in step.input_partitions else None
            for name in step.inputs
        ]
        variables = [node.name for node in nodes if node.op == _VARIABLE]
        module.shard_inputs([*given, *(of_variables.get(name) for name in variables)])
    for instruction in module.instructions():
        if (
            not instruction.HasField("sharding")
            or instruction.sharding.type == xla_data_pb2.OpSharding.TUPLE
        ):
            continue
        name = instruction.metadata.op_name or instruction.name
        wrong = shardings.misfit(
            name, instruction.shape.dimensions, instruction.sharding, cores=step.num_partitions
        )
        if wrong is not None:
            op_type, source = step.look_up(name)
            message, _, advice = wrong.partition(": ")
            return Problem(
                stage="lowering",
                op_name=name,
                op_type=op_type,
                source=source,
                message=f"{message}.",
                advice=f"{advice[:1].upper()}{advice[1:]}",
            )
    return None
