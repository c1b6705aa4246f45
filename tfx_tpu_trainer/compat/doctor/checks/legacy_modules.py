"""Modules of TFX <= 1.15: trainer_fn, and Trainers that took it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Finding, Verdict
from tfx_tpu_trainer.compat.doctor.checks.context import Context

_THEME: Final = "tfx"
_COMPONENT: Final = "TpuTrainer(module_file=...)"


def check_legacy_modules(context: Context) -> Iterator[Finding]:
    """Looks for a trainer_fn, and for components that are given one."""
    for function in context.program.functions:
        if function.name == "trainer_fn" and function.outer is None:
            if len(function.parameters) >= 2:
                yield context.finding(
                    function.place,
                    Verdict.WORKS,
                    theme=_THEME,
                    name="trainer_fn",
                    says=(
                        "A module for the Trainer of TFX <= 1.15; tfx_tpu_trainer.components.trainer runs "
                        f"it unchanged: {_COMPONENT} instead of Trainer, in the pipeline."
                    ),
                )
            else:
                yield context.finding(
                    function.place,
                    Verdict.EDIT,
                    theme=_THEME,
                    name="trainer_fn",
                    says="trainer_fn is called with two arguments.",
                    edit="def trainer_fn(trainer_fn_args, schema)",
                )
    for call in context.program.calls:
        if call.attribute != "Trainer" or not call.name.startswith("tfx."):
            continue
        for argument in call.node.keywords:
            if argument.arg == "trainer_fn":
                yield context.finding(
                    context.program.place_of_keyword(argument),
                    Verdict.EDIT,
                    theme=_THEME,
                    name="Trainer(trainer_fn=...)",
                    says="TFX 1.16 removed the executor of estimators, so its Trainer takes no trainer_fn.",
                    edit=f"tfx_tpu_trainer.components.trainer.{_COMPONENT}, or TpuTrainer(trainer_fn=...)",
                )
