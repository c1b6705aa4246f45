"""Static sizes of tensors: `x.shape[1].value` of TensorFlow 1, where a shape held Dimensions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Finding, Verdict
from tfx_tpu_trainer.compat.doctor.checks.context import Context

_SHAPES: Final = ("shape", "get_shape", "output_shapes", "with_rank", "with_rank_at_least")
_OFF: Final = re.compile(r"\b(disable_v2_behavior|disable_v2_tensorshape)\s*\(")
_SIZE: Final = "tensorflow.compat.dimension_value"


def check_dimensions(context: Context) -> Iterator[Finding]:
    """Looks for the `.value` of a shape's parts."""
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
    """Whether an expression is a tensor's shape, as far as one can see."""
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
