"""Sessions and eager execution."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Finding, Verdict
from tfx_tpu_trainer.compat.doctor._parts import Call
from tfx_tpu_trainer.compat.doctor._text_edits import TextEdit
from tfx_tpu_trainer.compat.doctor.checks.context import Context

_THEME: Final = "sessions"
_SESSIONS: Final = re.compile(
    r"tensorflow(\.compat\.v1|\.python\.framework\.ops)?\.(Session|InteractiveSession|train\.(MonitoredTrainingSession|Supervisor))$"
)
_GRAPH_MODE: Final = re.compile(r"\.(disable_eager_execution|disable_v2_behavior|Graph)$")
_EAGER: Final = re.compile(r"tensorflow(\.compat\.v1|\.contrib\.eager)?\.enable_eager_execution$")


def check_sessions(context: Context) -> Iterator[Finding]:
    """Looks at sessions of the program's own."""
    in_graph_mode = any(_GRAPH_MODE.search(each.name) for each in context.program.calls)
    for call in context.program.calls:
        if _SESSIONS.match(call.name) and not in_graph_mode:
            yield _session(context, call)
        elif _EAGER.match(call.name):
            yield context.finding(
                call.place,
                Verdict.WORKS,
                theme=_THEME,
                name="tf.enable_eager_execution",
                says="Eager execution is on in TensorFlow 2; estimators still build graphs.",
            )


def _session(context: Context, call: Call) -> Finding:
    switch, added = context.spelling.spell("tensorflow.compat.v1.disable_v2_behavior")
    return context.finding(
        call.place,
        Verdict.EDIT,
        theme=_THEME,
        name=f"tf.{call.attribute}",
        says=(
            "The program's own session runs a graph, and TensorFlow 2 builds none by default. "
            "Estimators do not need this switch, nor does it disturb them."
        ),
        edit=f"{switch}(), right after the imports",
        edits=(*added, _switch(context, switch)),
    )


def _switch(context: Context, switch: str) -> TextEdit:
    """Puts the switch below the module's imports."""
    program = context.program
    imports = [
        each
        for each in program.bindings
        if not each.in_function and not each.assigned and each.statement_place.column == 1
    ]
    last = max((each.statement_place.end for each in imports), default=0)
    newline = program.source.find(b"\n", last)
    at = newline + 1 if newline >= 0 else len(program.source)
    return TextEdit(at, at, f"\n{switch}()\n")
