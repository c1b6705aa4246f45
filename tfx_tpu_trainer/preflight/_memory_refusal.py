"""What the TPU's compiler says of a program that does not fit into HBM."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from tfx_tpu_trainer.preflight._results import Allocation, LoweredStep, Problem

_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([BKMGT]?)"

_USED = re.compile(rf"Used {_SIZE} of {_SIZE} hbm")
# Newer compilers say it in a sentence; arguments are in the number.
_REQUIRED = re.compile(rf"total memory required .*?\({_SIZE}\) exceeds available HBM \({_SIZE}\)")
# Of one buffer that is larger than all of a chip's memory; no other is in the number.
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

# What `engine_steps` calls the inputs of a step.
_INPUT = re.compile(r"(features|labels)\b")

_SHOWN = 3


@dataclasses.dataclass(frozen=True)
class MemoryRefusal:
    """What stands in the message.

    Attributes:
        need_bytes: HBM that the program needs, as far as the compiler came.
        limit_bytes: HBM that it may use.
        arguments_counted: Whether variables and inputs are part of `need_bytes`; the compiler
            may give up before it has looked at them.
        largest: The largest allocations, largest first.
    """

    need_bytes: int
    limit_bytes: int
    arguments_counted: bool
    largest: tuple[Allocation, ...]


def read(text: str) -> MemoryRefusal | None:
    """Reads a message of the compiler."""
    one = _ONE_BUFFER.search(text)
    if one is not None:
        return _of_one_buffer(text, int(one[1]), int(one[2]))
    required = _REQUIRED.search(text)
    used = required or _USED.search(text)
    if used is None:
        return None
    arguments = _ARGUMENTS.search(text)
    counted = arguments is not None and _bytes(arguments[1], arguments[2]) > 0
    return MemoryRefusal(
        need_bytes=_bytes(used[1], used[2]),
        limit_bytes=_bytes(used[3], used[4]),
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


def problem_of(
    step: LoweredStep,
    target: str,
    need_bytes: int,
    limit_bytes: int,
    allocations: Sequence[Allocation],
) -> Problem:
    """Tells that a step does not fit, and what takes most of the memory."""
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
    found = _bytes(size, unit)
    name = operator[1] if operator else label[1] if label else "?"
    return Allocation(
        bytes=found,
        op_name=name,
        shape=shape[1].strip() if shape else "?",
        category=_category(kind[1].lower() if kind else ""),
        unpadded_bytes=_bytes(unpadded[1], unpadded[2]) if unpadded else found,
    )


def _category(kind: str) -> str:
    if "parameter" in kind or "argument" in kind or "input" in kind:
        return "argument"
    return "output" if "output" in kind else "temp"


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[unit])
