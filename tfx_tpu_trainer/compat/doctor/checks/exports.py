"""Exports of TPUEstimators."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Finding, Verdict
from tfx_tpu_trainer.compat.doctor.checks import history
from tfx_tpu_trainer.compat.doctor.checks.context import Context, is_false

_THEME: Final = "export"
_EXPORTS: Final = (
    "export_savedmodel",
    "export_saved_model",
    "experimental_export_all_saved_models",
)


def check_exports(context: Context) -> Iterator[Finding]:
    """Looks at the calls that export."""
    one_graph = all(is_false(each.argument("export_to_tpu", 10)) for each in context.tpu_estimators)
    for call in context.program.calls:
        if call.attribute not in _EXPORTS or not isinstance(call.node.func, ast.Attribute):
            continue
        if context.tpu_estimators and not one_graph:
            yield context.finding(
                call.place,
                Verdict.NOTE,
                theme=_THEME,
                name=f".{call.attribute}()",
                says=history.ONE_GRAPH,
                edit="export_to_tpu=False in the constructor for the CPU graph only",
            )
        if call.attribute == "export_savedmodel":
            yield context.finding(
                call.place,
                Verdict.WORKS,
                theme=_THEME,
                name=".export_savedmodel()",
                says=(
                    "Every estimator has the old name, even those on which the original hid it; "
                    "export_saved_model is the newer one."
                ),
            )
