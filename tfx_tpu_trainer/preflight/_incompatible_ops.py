"""Finds the ops of a step that no TPU runs, before anything is lowered, and says what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_tpu_trainer.estimator.extending import ops_on_tpu
from tfx_tpu_trainer.preflight._results import Problem
from tfx_tpu_trainer.preflight._step_graph import StepGraph

v1 = tf.compat.v1


class _Kind(NamedTuple):
    """A kind of op.

    Attributes:
        pattern: What the types of such ops are like.
        reason: What such an op does, after its name.
        advice: What to do about it.
    """

    pattern: re.Pattern[str]
    reason: str
    advice: str


# The first that fits counts.
_KINDS = (
    _Kind(
        re.compile(r"Summary"),
        "writes a summary, which only a host can do",
        "Write it in host_call, which gets the step's tensors on the host: "
        "TPUEstimatorSpec(host_call=(function, tensors)).",
    ),
    _Kind(
        re.compile(r"^(Eager)?PyFunc"),
        "calls Python, which no TPU can do",
        "Write it with TensorFlow ops, or do it before the step: in Transform or in the input_fn.",
    ),
    _Kind(
        re.compile(r"HashTable|LookupTable|InitializeTable"),
        "looks up a table, which no TPU holds",
        "Turn values into ids before the step: in Transform (tft.compute_and_apply_vocabulary) or "
        "in the input_fn.",
    ),
    _Kind(
        re.compile(r"Dataset|Iterator"),
        "reads a dataset, which only a host can do",
        "Read it in the input_fn, and pass its tensors as features.",
    ),
    _Kind(
        re.compile(r"^(VariableV2|Variable|TemporaryVariable|Ref[A-Z]\w+)$"),
        "works on a reference variable, which no TPU holds",
        "Make the variable with tf.compat.v1.get_variable or tf.Variable, not with raw ops: under "
        "this package they create resource variables.",
    ),
    _Kind(
        re.compile(r"^(Switch|Merge|Enter|Exit|NextIteration|LoopCond)$"),
        "is control flow of version 1, which can't be lowered",
        "Leave control flow v2 on while model_fn runs: remove "
        "tf.compat.v1.disable_control_flow_v2().",
    ),
    _Kind(
        re.compile(r"^(Print|PrintV2|StringFormat)$"),
        "prints, which only a host can do",
        "Remove it, or report the value in host_call.",
    ),
    _Kind(
        re.compile(r"^Placeholder(V2|WithDefault)?$"),
        "is a placeholder that nothing feeds",
        "Take the value from features or labels, or make it a constant.",
    ),
)

_OF_STRINGS = (
    "Handle strings before the step: in Transform (tft.compute_and_apply_vocabulary turns them into "
    "ids) or in the input_fn. A TPU computes with numbers only."
)
_OTHERWISE = "Do it before the step: in Transform or in the input_fn."


def find_incompatible_op(step: StepGraph, nodes: Iterable[v1.NodeDef]) -> Problem | None:
    """Looks for an op that can be told by its type alone to run on no TPU."""
    functions, seen = step.functions(), set[str]()
    for node in nodes:
        for inner in (node, *ops_on_tpu.nodes_called(node, functions, seen=seen)):
            found = _why_not(inner)
            if found:
                return _problem(step, inner, node, *found)
    return None


def _why_not(node: Any) -> tuple[str, str] | None:
    if node.op == "Placeholder" and node.attr["dtype"].type == tf.resource.as_datatype_enum:
        return None
    known = next((kind for kind in _KINDS if kind.pattern.search(node.op)), None)
    if known is not None:
        return known.reason, known.advice
    reason = ops_on_tpu.why_not_on_tpu(node)
    if reason is None:
        return None
    advice = _OF_STRINGS if "strings" in reason else _OTHERWISE
    return f"{reason}, which no TPU can do", advice


def _problem(step: StepGraph, node: Any, caller: Any, reason: str, advice: str) -> Problem:
    part_of = "" if node is caller else f", part of {caller.op} {caller.name!r},"
    return Problem(
        stage="lowering",
        op_name=node.name if node is caller else caller.name,
        op_type=node.op,
        source=step.source_of(caller.name),
        message=f"{node.op} {node.name!r}{part_of} {reason}.",
        advice=advice,
    )
