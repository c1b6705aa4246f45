"""train_and_evaluate, train and evaluate: what they need on cores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Finding, Verdict
from tfx_tpu_trainer.compat.doctor.checks.context import Context, is_none

_THEME: Final = "schedule"


def check_schedules(context: Context) -> Iterator[Finding]:
    """Looks at TrainSpec, EvalSpec, train() and evaluate()."""
    if not context.on_cores:
        return
    for call in context.api_calls("TrainSpec"):
        steps = call.argument("max_steps", 1)
        if not call.has_spread and (steps is None or is_none(steps)):
            yield context.finding(
                call.place,
                Verdict.EDIT,
                theme=_THEME,
                name="TrainSpec",
                says="Training on cores needs an end: without max_steps it is a ValueError.",
                edit="max_steps=...",
            )
    for call in context.api_calls("EvalSpec"):
        if is_none(call.argument("steps", 1)):
            yield context.finding(
                call.place,
                Verdict.WORKS,
                theme=_THEME,
                name="EvalSpec(steps=None)",
                says=(
                    "The original refused it on cores. Here it runs to the end of the input, and "
                    "a short last batch counts."
                ),
            )
    for call in context.program.calls:
        if call.attribute != "train" or context.given_input_fn(call) is None or call.has_spread:
            continue
        if context.api_name(call):
            continue
        if call.argument("steps", 2) is None and call.argument("max_steps", 3) is None:
            yield context.finding(
                call.place,
                Verdict.EDIT,
                theme=_THEME,
                name=".train()",
                says="Training on cores needs an end: without steps it is a ValueError.",
                edit="max_steps=..., or steps=...",
            )
