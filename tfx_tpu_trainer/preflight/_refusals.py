"""Explains why TensorFlow or the TPU's compiler rejects a step, as a problem with an op of the model."""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from tfx_tpu_trainer.preflight._results import Allocation, LoweredStep, Problem
from tfx_tpu_trainer.preflight._step_graph import StepGraph

_LONGEST = 1500

_BEFORE = "do it before the step: in Transform or in the input_fn."

_NODE = re.compile(r"\{\{node ([^}\s]+)\}\}")
_NODE_IN_QUOTES = re.compile(r"node [`'\"]([^`'\"]+)[`'\"]")
_UNSUPPORTED = re.compile(r"No registered '(\w+)' OpKernel")
_WIDE = re.compile(r"\b(s64|u64|f64|c128)\b")
_OP_NAME = re.compile(r'op_name\s*[=:]\s*"([^"]+)"')

_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([BKMGT]?)"

_USED = re.compile(rf"Used {_SIZE} of {_SIZE} hbm")
# Newer compilers write a sentence; the number includes arguments.
_REQUIRED = re.compile(rf"total memory required .*?\({_SIZE}\) exceeds available HBM \({_SIZE}\)")
# One buffer larger than all of a chip's memory; the number includes no other.
_ONE_BUFFER = re.compile(r"Allocation \(size=(\d+)\) would exceed memory \(size=(\d+)\)")
_BUFFER_SHAPE = re.compile(r"shape = '([^']+)'")
_BUFFER_TAG = re.compile(r"tag = '([^'@]+)")
_ARGUMENTS = re.compile(rf"^\s*arguments\s+{_SIZE}", re.MULTILINE)
_ALLOCATION = re.compile(rf"^\s*\d+\. Size: {_SIZE}(.*?)^\s*=+$", re.MULTILINE | re.DOTALL)
_OPERATOR = re.compile(r'op_name="([^"]*)"')
_LABEL = re.compile(r"XLA label: (\S+)")
_SHAPE = re.compile(r"Shape: (.+)")
_UNPADDED = re.compile(rf"Unpadded size: {_SIZE}")
_TYPE = re.compile(r"Allocation type: (.+)")

# `engine_steps` gives a step's inputs these names.
_INPUT = re.compile(r"(features|labels)\b")

_SHOWN = 3


def lowering_problem(error: Exception, step: StepGraph) -> Problem:
    """Explains why TensorFlow does not lower a step."""
    text = getattr(error, "message", None) or str(error)
    types = {node.name: node.op for node in step.graph_def.node}
    name = _first_known(text, types)
    op_type = types.get(name or "")
    unsupported = _UNSUPPORTED.search(text)
    op_type = unsupported[1] if unsupported else op_type
    message, advice = _lowering_words(text, op_type, name)
    return Problem(
        stage="lowering",
        op_name=name,
        op_type=op_type,
        source=step.source_of(name) if name else None,
        message=message,
        advice=advice,
        details=_shortened(text),
    )


def compiler_problem(code: str | None, text: str, step: LoweredStep) -> Problem:
    """Explains why the TPU's compiler rejects a step for another reason than memory."""
    name = _first_known(text, step.op_types) or _wide_op(text, step)
    op_type, source = step.look_up(name or "")
    what = f"{op_type} {name!r}" if name else "the program"
    return Problem(
        stage="compiler",
        op_name=name,
        op_type=op_type,
        source=source,
        message=f"The TPU compiler refuses {what}: {_first_line(text)}",
        advice=_compiler_advice(text),
        details=_shortened(f"{code}: {text}"),
    )


def _lowering_words(text: str, op_type: str | None, name: str | None) -> tuple[str, str]:
    """Returns our message and advice for TensorFlow's message."""
    what = f"{op_type} {name!r}" if op_type and name else op_type or "an op of the step"
    if "compile-time constant" in text:
        message = (
            f"The shape or another fixed argument of {what} depends on data, and a TPU program "
            "has fixed shapes."
        )
        advice = (
            "Compute it from static shapes (tensor.shape, params['batch_size']) instead of values "
            "of tensors; pad to a fixed size and mask the rest."
        )
    elif _UNSUPPORTED.search(text):
        message = f"{what} can't be lowered to a TPU program: TensorFlow has no XLA kernel for it."
        advice = f"Use another op with the same result, or {_BEFORE}"
    else:
        message = f"TensorFlow can't lower {what} to a TPU program: {_first_line(text)}"
        advice = f"Give the op static shapes and a type that XLA knows, or {_BEFORE}"
    return message, advice


def _compiler_advice(text: str) -> str:
    lowered = text.lower()
    if "s64" in lowered or "u64" in lowered:
        return "Cast to tf.int32 or tf.float32 first: the TPU has no 64-bit integer units."
    if "c128" in lowered or "f64" in lowered:
        return "Cast to tf.complex64 or tf.float32 first: the TPU has no 64-bit floating point."
    return f"Write it with other ops, or {_BEFORE}"


def _first_known(text: str, names: Mapping[str, object]) -> str | None:
    """Finds the first op of the step that a text names; for an op in a function, its caller."""
    for pattern in (_NODE, _NODE_IN_QUOTES, _OP_NAME):
        for found in pattern.findall(text):
            name = found
            while name:
                if name in names:
                    return name
                name = name.rpartition("/")[0]
    return None


def _wide_op(text: str, step: LoweredStep) -> str | None:
    """Finds the op of a message that names only an element type."""
    if not _WIDE.search(text):
        return None
    wide = [finding for finding in step.findings if finding.kind == "wide_dtype"]
    named = [finding for finding in wide if finding.op_type and finding.op_type in text]
    return next((finding.op_name for finding in [*named, *wide]), None)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


@dataclasses.dataclass(frozen=True)
class MemoryRefusal:
    """The memory in a message of the compiler."""

    need_bytes: int  # HBM that the program needs, as far as the compiler got
    limit_bytes: int  # HBM available to it
    # Whether `need_bytes` includes variables and inputs; the compiler may give up before counting them.
    arguments_counted: bool
    largest: tuple[Allocation, ...]  # the largest allocations, largest first


def read_memory_refusal(text: str) -> MemoryRefusal | None:
    """Parses the compiler's message about memory; returns `None` for any other message."""
    one = _ONE_BUFFER.search(text)
    if one is not None:
        return _of_one_buffer(text, int(one[1]), int(one[2]))
    required = _REQUIRED.search(text)
    used = required or _USED.search(text)
    if used is None:
        return None
    arguments = _ARGUMENTS.search(text)
    counted = arguments is not None and _size(arguments[1], arguments[2]) > 0
    return MemoryRefusal(
        need_bytes=_size(used[1], used[2]),
        limit_bytes=_size(used[3], used[4]),
        arguments_counted=required is not None or counted,
        largest=tuple(_allocation(*found) for found in _ALLOCATION.findall(text)),
    )


def _of_one_buffer(text: str, size: int, memory: int) -> MemoryRefusal:
    shape, tag = _BUFFER_SHAPE.search(text), _BUFFER_TAG.search(text)
    buffer = Allocation(
        bytes=size,
        op_name=tag[1] if tag else "?",
        shape=shape[1] if shape else "?",
        category="temp",
        unpadded_bytes=size,
    )
    return MemoryRefusal(
        need_bytes=size, limit_bytes=memory, arguments_counted=False, largest=(buffer,)
    )


def memory_problem(
    step: LoweredStep,
    target: str,
    need_bytes: int,
    limit_bytes: int,
    allocations: Sequence[Allocation],
) -> Problem:
    """Explains that a step does not fit, with its largest allocations."""
    largest = allocations[0].op_name if allocations else None
    op_type, source = step.op_types.get(largest or "", (None, None))
    shown = "; ".join(
        f"{each.op_name} {each.bytes / 2**30:.2f} GiB ({each.shape}, {each.category})"
        for each in allocations[:_SHOWN]
    )
    return Problem(
        stage="memory",
        op_name=largest,
        op_type=op_type,
        source=source,
        message=(
            f"The step needs at least {need_bytes / 2**30:.2f} GiB of HBM on each TPU device, but "
            f"a program may use only {limit_bytes / 2**30:.2f} GiB on {target}"
            + (f". The largest: {shown}." if shown else ".")
        ),
        advice=_advice(allocations),
    )


def _advice(allocations: Sequence[Allocation]) -> str:
    largest = allocations[0] if allocations else None
    if largest and largest.category == "argument" and not _INPUT.match(largest.op_name):
        return (
            "Variables and the optimizer's copies of them do not shrink with more chips: use a "
            "smaller model, an optimizer with less state (Adam keeps two copies), or a chip with "
            "more HBM."
        )
    return (
        "Use fewer rows for each core (a smaller batch or more chips), bfloat16 activations, "
        "tf.recompute_grad around large layers, or a chip with more HBM."
    )


def _allocation(size: str, unit: str, block: str) -> Allocation:
    operator, label = _OPERATOR.search(block), _LABEL.search(block)
    shape, unpadded, kind = _SHAPE.search(block), _UNPADDED.search(block), _TYPE.search(block)
    found = _size(size, unit)
    name = operator[1] if operator else label[1] if label else "?"
    return Allocation(
        bytes=found,
        op_name=name,
        shape=shape[1].strip() if shape else "?",
        category=_category(kind[1].lower() if kind else ""),
        unpadded_bytes=_size(unpadded[1], unpadded[2]) if unpadded else found,
    )


def _category(kind: str) -> str:
    if "parameter" in kind or "argument" in kind or "input" in kind:
        return "argument"
    return "output" if "output" in kind else "temp"


def _size(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[unit])
