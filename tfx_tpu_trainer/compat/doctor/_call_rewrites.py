"""Calls whose arguments change with their name."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Final

from tfx_tpu_trainer.compat.doctor._parts import Call
from tfx_tpu_trainer.compat.doctor._program import Program
from tfx_tpu_trainer.compat.doctor._spelling import V1, Spelling
from tfx_tpu_trainer.compat.doctor._text_edits import TextEdit

Rewritten = tuple[str, tuple[TextEdit, ...]]
_SUMMARY: Final = "tensorflow.contrib.summary"


def rewrite_call(
    program: Program, call: Call, key: str, becomes: str, spelling: Spelling
) -> Rewritten | None:
    """Rewrites a call, if its arguments are those that a rewriter knows."""
    rewriter = REWRITTEN.get(key)
    if rewriter is None or call.has_spread:
        return None
    name, added = spelling.spell(becomes) if becomes.count(".") else (becomes, ())
    rewritten = rewriter(program, call, name, spelling)
    if rewritten is None:
        return None
    text, edits = rewritten
    return text, (*edits, *added)


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
    outer = next((each for each in program.around(call.node) if isinstance(each, ast.Call)), None)
    if size is None or outer is None or outer.args != [call.node] or outer.keywords:
        return None
    if not isinstance(outer.func, ast.Attribute) or outer.func.attr != "apply":
        return None
    start, end = program.place_of_last_part(outer.func).start, program.place(outer).end
    text = f"{name}({program.written(size)}, drop_remainder=True)"
    return f".{text}", (TextEdit(start, end, text),)


REWRITTEN: Final[dict[str, Callable[[Program, Call, str, Spelling], Rewritten | None]]] = {
    f"{_SUMMARY}.always_record_summaries": _recording("True"),
    f"{_SUMMARY}.never_record_summaries": _recording("False"),
    f"{_SUMMARY}.scalar": _summary,
    f"{_SUMMARY}.histogram": _summary,
    f"{_SUMMARY}.image": _summary,
    f"{_SUMMARY}.audio": _summary,
    "tensorflow.contrib.data.batch_and_drop_remainder": _full_batches,
}
