"""TPUClusterResolver and RunConfig: where the TPU is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Finding, Verdict
from tfx_tpu_trainer.compat.doctor.checks.context import Context

_THEME: Final = "clusters"


def check_resolvers(context: Context) -> Iterator[Finding]:
    """Looks at the calls that make and ask resolvers."""
    resolvers = [each for each in context.program.calls if each.attribute == "TPUClusterResolver"]
    for call in resolvers:
        yield context.finding(
            call.place,
            Verdict.NOTE,
            theme=_THEME,
            name="TPUClusterResolver",
            says=(
                "With a TPU's name it asks the cloud, and fails at once if no such TPU exists. With "
                "TFX_TPU_TRAINER_EMULATE=1, tpu.TPUClusterResolver of tfx_tpu_trainer.estimator answers it with "
                "emulated cores, as `python -m tfx_tpu_trainer.compat` does for TensorFlow's own; "
                'TPUClusterResolver("local") works everywhere.'
            ),
        )
        for argument in call.node.keywords:
            if argument.arg == "tpu_names":
                yield context.finding(
                    context.program.place_of_keyword(argument),
                    Verdict.EDIT,
                    theme=_THEME,
                    name="tpu_names",
                    says="The argument became tpu, which takes one name.",
                    edit="tpu=name",
                )
    if not resolvers:
        return
    for call in context.program.calls:
        if call.attribute == "get_master" and isinstance(call.node.func, ast.Attribute):
            place = context.program.place_of_last_part(call.node.func)
            yield context.finding(
                call.place,
                Verdict.EDIT,
                theme=_THEME,
                name=".get_master()",
                says="A resolver's get_master() became master().",
                edit=".master()",
                edits=(place.replaced_by("master"),),
            )
