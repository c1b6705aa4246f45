"""Calls whose arguments change with their name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import libcst as cst

from tfx_tpu_trainer.doctor.parts import Call
from tfx_tpu_trainer.doctor.program import Program
from tfx_tpu_trainer.doctor.spelling import V1, Spelling
from tfx_tpu_trainer.doctor.text_edits import TextEdit

Rewritten = tuple[str, tuple[TextEdit, ...]]
_LAYERS: Final = "tensorflow.contrib.layers"
_SUMMARY: Final = "tensorflow.contrib.summary"


def rewrite_call(
    program: Program, call: Call, key: str, becomes: str, spelling: Spelling
) -> Rewritten | None:
    """Rewrites a call, if its arguments are those that a rewriter knows.

    Args:
        program: The program.
        call: The call.
        key: The name that the rule speaks of.
        becomes: The new name in full.
        spelling: How the program writes names.

    Returns:
        The new text and its edits; `None` where the call is not to be rewritten mechanically.
    """
    rewriter = _REWRITERS.get(key)
    if rewriter is None or call.has_spread:
        return None
    name, added = spelling.spell(becomes) if becomes.count(".") else (becomes, ())
    rewritten = rewriter(program, call, name, spelling)
    if rewritten is None:
        return None
    text, edits = rewritten
    return text, (*edits, *added)


def _initializer(program: Program, call: Call, name: str, spelling: Spelling) -> Rewritten | None:
    del program, spelling
    if set(call.arguments) - {"seed", "dtype"}:
        return None
    return f"{name}(...)", (call.name_place.replaced_by(name),)


def _regularizer(scale: str) -> Callable[[Program, Call, str, Spelling], Rewritten | None]:
    def rewrite(program: Program, call: Call, name: str, spelling: Spelling) -> Rewritten | None:
        del spelling
        value = call.argument("scale", 0)
        if value is None or len(call.arguments) != 1:
            return None
        written = program.written(value)
        simple = isinstance(value, cst.Name | cst.Attribute | cst.BaseNumber | cst.Call)
        if scale and not simple:
            written = f"({written})"
        text = f"{name}({scale}{written})"
        return text, (call.place.replaced_by(text),)

    return rewrite


def _recording(value: str) -> Callable[[Program, Call, str, Spelling], Rewritten | None]:
    def rewrite(program: Program, call: Call, name: str, spelling: Spelling) -> Rewritten | None:
        del program, spelling
        if call.arguments:
            return None
        text = f"{name}({value})"
        return text, (call.place.replaced_by(text),)

    return rewrite


def _summary(program: Program, call: Call, name: str, spelling: Spelling) -> Rewritten | None:
    """Rewrites summary(name, tensor, step=step); contrib's step was the global step by default."""
    if set(call.arguments) - {"0", "1", "name", "tensor", "step"}:
        return None
    label, tensor = call.argument("name", 0), call.argument("tensor", 1)
    if label is None or tensor is None:
        return None
    step, added = spelling.spell(f"{V1}.train.get_or_create_global_step")
    step += "()"
    if "step" in call.arguments:
        step, added = program.written(call.arguments["step"]), ()
    text = f"{name}({program.written(label)}, {program.written(tensor)}, step={step})"
    return text, (call.place.replaced_by(text), *added)


def _full_batches(program: Program, call: Call, name: str, spelling: Spelling) -> Rewritten | None:
    """Rewrites dataset.apply(batch_and_drop_remainder(n))."""
    del spelling
    size = call.argument("batch_size", 0)
    outer = next((each for each in program.parents(call.node) if isinstance(each, cst.Call)), None)
    if (
        size is None
        or outer is None
        or len(outer.args) != 1
        or outer.args[0].value is not call.node
    ):
        return None
    if not isinstance(outer.func, cst.Attribute) or outer.func.attr.value != "apply":
        return None
    start, end = program.place(outer.func.attr).start, program.place(outer).end
    text = f"{name}({program.written(size)}, drop_remainder=True)"
    return f".{text}", (TextEdit(start, end, text),)


_REWRITERS: Final[dict[str, Callable[[Program, Call, str, Spelling], Rewritten | None]]] = {
    f"{_LAYERS}.xavier_initializer": _initializer,
    f"{_LAYERS}.xavier_initializer_conv2d": _initializer,
    f"{_LAYERS}.l1_regularizer": _regularizer(""),
    f"{_LAYERS}.l2_regularizer": _regularizer("0.5 * "),
    f"{_SUMMARY}.always_record_summaries": _recording("True"),
    f"{_SUMMARY}.never_record_summaries": _recording("False"),
    f"{_SUMMARY}.scalar": _summary,
    f"{_SUMMARY}.histogram": _summary,
    f"{_SUMMARY}.image": _summary,
    f"{_SUMMARY}.audio": _summary,
    "tensorflow.contrib.data.batch_and_drop_remainder": _full_batches,
}
