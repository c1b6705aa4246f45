"""Finds ops that no TPU runs, before lowering, and parts of a compiled program that cost time or memory."""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_tpu_trainer.estimator.extending import ops_on_tpu
from tfx_tpu_trainer.preflight._hbm import (
    LANES,
    SUBLANES,
    bytes_of_elements,
    element_type,
    shape_text,
    unpadded_bytes,
)
from tfx_tpu_trainer.preflight._hlo_module import HloModule
from tfx_tpu_trainer.preflight._results import Allocation, Finding, Problem
from tfx_tpu_trainer.preflight._step_graph import StepGraph

v1 = tf.compat.v1

_OF_STRINGS = (
    "Handle strings before the step: in Transform (tft.compute_and_apply_vocabulary turns them into "
    "ids) or in the input_fn. A TPU computes with numbers only."
)
_OTHERWISE = "Do it before the step: in Transform or in the input_fn."

_SHOWN = 5

_WIDE = {"s64": "int64", "u64": "uint64", "f64": "float64", "c128": "complex128"}
_NARROW = {"s64": "int32", "u64": "uint32", "f64": "float32", "c128": "complex64"}

# These pass on values at almost no cost.
_NO_ARITHMETIC = frozenset(
    {"parameter", "constant", "tuple", "get-tuple-element", "reshape", "bitcast", "broadcast"}
    | {"convert", "copy", "call", "while", "conditional", "iota"}
)

_POORLY_FILLED = 0.5
_WORTH_A_WORD_BYTES = 1 << 20
_WORTH_A_WORD_RATIO = 1.25

LookUp = Callable[[str], tuple[str | None, str | None]]
"""Returns type and source line of a TensorFlow op by its name."""

# A finder yields a key, a cost in any unit, and a finding; for each key the most expensive finding counts.
_Found = Iterator[tuple[Any, int, Finding]]


class _Kind(NamedTuple):
    pattern: re.Pattern[str]  # matches the types of such ops
    reason: str  # describes the op, after its name
    advice: str  # the remedy


# The first match counts.
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


def find_incompatible_op(step: StepGraph, nodes: Iterable[v1.NodeDef]) -> Problem | None:
    """Finds the first op that no TPU runs, judging by its type alone."""
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


def find_in_hlo(module: HloModule, look_up: LookUp) -> tuple[Finding, ...]:
    """Finds 64-bit types, data-dependent shapes, and matrix products that fill few of their tiles."""
    return (
        *_costliest(_wide_types(module, look_up)),
        *_costliest(_dynamic_shapes(module, look_up)),
        *_costliest(_poorly_filled(module, look_up)),
    )


def find_padding(allocations: Iterable[Allocation], look_up: LookUp) -> tuple[Finding, ...]:
    """Finds buffers that tiling makes much larger."""
    return _costliest(_padded(allocations, look_up))


def _costliest(found: _Found) -> tuple[Finding, ...]:
    best: dict[Any, tuple[int, Finding]] = {}
    for key, cost, finding in found:
        if key not in best or best[key][0] < cost:
            best[key] = cost, finding
    ranked = sorted(best.values(), key=lambda each: -each[0])
    return tuple(finding for _, finding in ranked[:_SHOWN])


def _padded(allocations: Iterable[Allocation], look_up: LookUp) -> _Found:
    for each in allocations:
        wasted = each.bytes - each.unpadded_bytes
        if wasted < _WORTH_A_WORD_BYTES or each.bytes < _WORTH_A_WORD_RATIO * each.unpadded_bytes:
            continue
        op_type, source = look_up(each.op_name)
        advice = f"Make dimensions multiples of {SUBLANES} and {LANES}, or merge the small ones."
        message = (
            f"{each.op_name} takes {_mib(each.bytes)} MiB of HBM, {_mib(wasted)} MiB of them to "
            f"pad {each.shape} to whole tiles of {SUBLANES} x {LANES}. {advice}"
        )
        finding = Finding(
            kind="padding",
            op_name=each.op_name,
            op_type=op_type,
            source=source,
            wasted_bytes=wasted,
            message=message,
            advice=advice,
        )
        yield (each.op_name, each.shape), wasted, finding


def _wide_types(module: HloModule, look_up: LookUp) -> _Found:
    for instruction in module.instructions():
        name, wide = instruction.metadata.op_name, element_type(instruction.shape)
        size = math.prod(instruction.shape.dimensions)
        # A scalar, such as the global step, costs nothing.
        if wide not in _WIDE or instruction.opcode in _NO_ARITHMETIC or size < 2 or not name:
            continue
        op = _op_of(instruction, look_up)
        advice = f"Cast to tf.{_NARROW[wide]}."
        message = (
            f"{op['op_type']} {name!r} computes in {_WIDE[wide]} ({shape_text(instruction.shape)}), "
            f"which the TPU composes of several 32-bit operations. {advice}"
        )
        yield name, size, Finding(kind="wide_dtype", **op, message=message, advice=advice)


def _dynamic_shapes(module: HloModule, look_up: LookUp) -> _Found:
    seen: set[str] = set()
    by_id = module.by_id()
    for instruction in module.instructions():
        name, shape = instruction.metadata.op_name, instruction.shape
        if not name or name in seen or not _is_dynamic(instruction):
            continue
        # Only where a dynamic shape originates: all values computed from it have one, too.
        if any(_is_dynamic(by_id[number]) for number in instruction.operand_ids):
            continue
        op = _op_of(instruction, look_up)
        # One line of the model often becomes several ops; the first one is named.
        where = op["source"] or name
        if where not in seen:
            message = (
                f"The shape of {op['op_type']} {name!r} depends on data, {shape_text(shape)}: the TPU "
                "computes for the upper bound, and later ops may not compile. If you can, use a mask "
                "of fixed shape, tf.where(mask, value, 0)."
            )
            yield where, unpadded_bytes(shape), Finding(kind="dynamic_shape", **op, message=message)
        seen |= {name, where}


def _poorly_filled(module: HloModule, look_up: LookUp) -> _Found:
    by_id = module.by_id()
    for instruction in module.instructions():
        name = instruction.metadata.op_name
        sizes = _matrix_sizes(instruction, by_id)
        # A gradient has its forward op's sizes in another order, and does not need its own finding.
        if sizes is None or not name or "gradients" in name.split("/"):
            continue
        rows, inner, columns = sizes
        padded = (_up(rows, SUBLANES), _up(inner, LANES), _up(columns, LANES))
        filled = math.prod(sizes) / math.prod(padded)
        if filled >= _POORLY_FILLED:
            continue
        op = _op_of(instruction, look_up)
        advice = (
            f"Rows in multiples of {SUBLANES} and features in multiples of {LANES} cost no more."
        )
        message = (
            f"{op['op_type']} {name!r} multiplies [{rows}, {inner}] by [{inner}, {columns}], which "
            f"fills {filled:.1%} of the {SUBLANES} x {LANES} tiles that the TPU pads it to. {advice}"
        )
        wasted = bytes_of_elements(_cells(padded) - _cells(sizes), instruction.shape)
        finding = Finding(kind="padding", **op, message=message, wasted_bytes=wasted, advice=advice)
        yield name, math.prod(padded), finding


def _matrix_sizes(instruction: Any, by_id: dict[int, Any]) -> tuple[int, int, int] | None:
    """Returns rows, inner size and columns of a matrix product or convolution."""
    if instruction.opcode not in ("dot", "convolution"):
        return None
    left, right = (by_id[number].shape.dimensions for number in instruction.operand_ids)
    if instruction.opcode == "dot":
        numbers = instruction.dot_dimension_numbers
        inner = math.prod(left[axis] for axis in numbers.lhs_contracting_dimensions)
        batch = math.prod(left[axis] for axis in numbers.lhs_batch_dimensions)
        return math.prod(left) // max(1, inner * batch), inner, _rest(right, inner * batch)
    numbers = instruction.convolution_dimension_numbers
    columns = right[numbers.kernel_output_feature_dimension]
    rows = _rest(instruction.shape.dimensions, columns)
    return rows, _rest(right, columns), columns


def _is_dynamic(instruction: Any) -> bool:
    return any(instruction.shape.is_dynamic_dimension)


def _rest(dimensions: Any, part: int) -> int:
    return math.prod(dimensions) // max(1, part)


def _cells(sizes: tuple[int, int, int]) -> int:
    """Returns the elements of both operands and of the result."""
    rows, inner, columns = sizes
    return rows * inner + inner * columns + rows * columns


def _up(size: int, multiple: int) -> int:
    return math.ceil(size / multiple) * multiple


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f}"


def _op_of(instruction: Any, look_up: LookUp) -> dict[str, Any]:
    """Returns name, type and source line of an instruction's TensorFlow op."""
    name = instruction.metadata.op_name
    op_type, source = look_up(name)
    op_type = op_type or instruction.metadata.op_type
    return {"op_name": name, "op_type": op_type, "source": source}
