"""Names that NumPy has removed: programs of TensorFlow 1's time are full of `np.bool` and `np.int`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Finding, Verdict
from tfx_tpu_trainer.compat.doctor._parts import Call, Use
from tfx_tpu_trainer.compat.doctor._text_edits import TextEdit
from tfx_tpu_trainer.compat.doctor.checks.context import Context
from tfx_tpu_trainer.compat.doctor.rules.numpy_names import (
    BUILTINS,
    GONE_BY_2,
    INSTEAD,
    RENAMED,
    RENAMED_BY_2,
)

_NUMPY: Final = "numpy."
_ITEM: Final = "asscalar"
_EARLIER: Final = "NumPy 1.24 and later have no np.{0}."
_BY_2: Final = "NumPy 2 has no np.{0}; the replacement exists in all versions."


def check_numpy_names(context: Context) -> Iterator[Finding]:
    """Looks for names that NumPy has removed."""
    calls = {call.node.func: call for call in context.program.calls}
    for use in context.program.uses:
        if not use.name.startswith(_NUMPY):
            continue
        name = use.name[len(_NUMPY) :].partition(".")[0]
        if name in BUILTINS:
            new = BUILTINS[name]
            if new in context.program.bound_names:
                new = f"{_module(context, use)}.{INSTEAD[new]}"
            yield _found(context, use, name, _EARLIER, new)
        elif name in RENAMED:
            yield _found(context, use, name, _EARLIER, f"{_module(context, use)}.{RENAMED[name]}")
        elif name in RENAMED_BY_2:
            yield _found(context, use, name, _BY_2, f"{_module(context, use)}.{RENAMED_BY_2[name]}")
        elif name in GONE_BY_2:
            yield _found(context, use, name, _BY_2, GONE_BY_2[name], by_hand=True)
        elif name == _ITEM:
            yield _scalar(context, use, calls.get(use.node))


def _module(context: Context, use: Use) -> str:
    """Returns how the program writes NumPy; after `from numpy import bool` as programs do."""
    if not use.writes("numpy"):
        return "np"
    place = use.prefix("numpy")
    return context.program.source[place.start : place.end].decode()


def _found(
    context: Context, use: Use, name: str, says: str, new: str, *, by_hand: bool = False
) -> Finding:
    # An import of the name itself would stay, and fail.
    by_hand = by_hand or not use.writes("numpy")
    place = use.prefix(f"{_NUMPY}{name}") if use.writes(f"{_NUMPY}{name}") else use.place
    return context.finding(
        place,
        Verdict.EDIT,
        theme="numpy",
        name=f"np.{name}",
        says=says.format(name),
        edit=new,
        edits=() if by_hand else (place.replaced_by(new),),
    )


def _scalar(context: Context, use: Use, call: Call | None) -> Finding:
    """`np.asscalar(x)` is `x.item()`."""
    edits: tuple[TextEdit, ...] = ()
    if call is not None and set(call.arguments) == {"0"} and not call.has_spread:
        value = call.arguments["0"]
        written = context.program.written(value)
        if not isinstance(value, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
            written = f"({written})"
        edits = (call.place.replaced_by(f"{written}.item()"),)
    return context.finding(
        use.place,
        Verdict.EDIT,
        theme="numpy",
        name=f"np.{_ITEM}",
        says=_EARLIER.format(_ITEM),
        edit="x.item()",
        edits=edits,
    )
