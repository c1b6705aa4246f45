"""Checks code that needs TensorFlow 1's behaviour: own sessions, and shapes that hold Dimensions."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Finding, TextEdit, Verdict
from tfx_tpu_trainer.compat.doctor._program import Call
from tfx_tpu_trainer.compat.doctor.checks import Context

_THEME: Final = "sessions"
_SESSIONS: Final = re.compile(
    r"tensorflow(\.compat\.v1|\.python\.framework\.ops)?\.(Session|InteractiveSession|train\.(MonitoredTrainingSession|Supervisor))$"
)
_GRAPH_MODE: Final = re.compile(r"\.(disable_eager_execution|disable_v2_behavior|Graph)$")
_EAGER: Final = re.compile(r"tensorflow(\.compat\.v1|\.contrib\.eager)?\.enable_eager_execution$")


def check_sessions(context: Context) -> Iterator[Finding]:
    """Finds sessions that the program opens itself."""
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
    """Inserts the switch below the module's imports."""
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


_SHAPES: Final = ("shape", "get_shape", "output_shapes", "with_rank", "with_rank_at_least")
_OFF: Final = re.compile(r"\b(disable_v2_behavior|disable_v2_tensorshape)\s*\(")
_SIZE: Final = "tensorflow.compat.dimension_value"


def check_dimensions(context: Context) -> Iterator[Finding]:
    """Finds `.value` on parts of a shape."""
    if _OFF.search(context.program.text):
        return
    for node in context.program.values:
        size = node.value
        if not isinstance(size, ast.Subscript) or isinstance(size.slice, ast.Slice):
            continue
        if not _is_shape(context, size.value):
            continue
        function, added = context.spelling.spell(_SIZE)
        place = context.program.place(node)
        new = f"{function}({context.program.written(size)})"
        yield context.finding(
            place,
            Verdict.EDIT,
            theme="shapes",
            name=".shape[i].value",
            says=(
                "A TensorFlow 2 shape contains integers, not Dimensions: an AttributeError, "
                "unless tf.compat.v1.disable_v2_behavior() is called first."
            ),
            edit=new,
            edits=(place.replaced_by(new), *added),
        )


def _is_shape(context: Context, node: ast.expr) -> bool:
    """Returns whether an expression is visibly a tensor's shape."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr in _SHAPES
    if isinstance(node, ast.Attribute):
        # `shape.dims[i]` is a Dimension in both.
        return node.attr in _SHAPES
    if not isinstance(node, ast.Name):
        return False
    scope = context.program.scopes.get(node)
    assigned = scope.assignments(node.id) if scope is not None else []
    values = [each.value for each in assigned if isinstance(each, ast.Assign)]
    if values:
        return any(not isinstance(each, ast.Name) and _is_shape(context, each) for each in values)
    return node.id.endswith("shape")
