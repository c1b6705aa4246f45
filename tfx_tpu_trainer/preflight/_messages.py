"""What TensorFlow and the TPU's compiler say, told as a problem with an op of the model."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tfx_tpu_trainer.preflight._results import LoweredStep, Problem
from tfx_tpu_trainer.preflight._step_graph import StepGraph

_LONGEST = 1500

_BEFORE = "do it before the step: in Transform or in the input_fn."

_NODE = re.compile(r"\{\{node ([^}\s]+)\}\}")
_NODE_IN_QUOTES = re.compile(r"node [`'\"]([^`'\"]+)[`'\"]")
_UNSUPPORTED = re.compile(r"No registered '(\w+)' OpKernel")
_WIDE = re.compile(r"\b(s64|u64|f64|c128)\b")
_OP_NAME = re.compile(r'op_name\s*[=:]\s*"([^"]+)"')


def of_lowering(error: Exception, step: StepGraph) -> Problem:
    """Tells why TensorFlow does not lower a step."""
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


def of_compiler(code: str | None, text: str, step: LoweredStep) -> Problem:
    """Tells why the TPU's compiler refuses a step for another reason than its memory."""
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
    """Returns message and advice for what stands in TensorFlow's message."""
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
    """Finds the first op of the step that a text names; of an op in a function, its caller."""
    for pattern in (_NODE, _NODE_IN_QUOTES, _OP_NAME):
        for found in pattern.findall(text):
            name = found
            while name:
                if name in names:
                    return name
                name = name.rpartition("/")[0]
    return None


def _wide_op(text: str, step: LoweredStep) -> str | None:
    """Finds the op of a message that names no op, but the type of its elements."""
    if not _WIDE.search(text):
        return None
    wide = [finding for finding in step.findings if finding.kind == "wide_dtype"]
    named = [finding for finding in wide if finding.op_type and finding.op_type in text]
    return next((finding.op_name for finding in [*named, *wide]), None)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
