"""Names that only Keras 2 has, which TensorFlow brings where TF_USE_LEGACY_KERAS says so."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Finding, Verdict
from tfx_tpu_trainer.compat.doctor.checks.context import Context

_VARIABLE: Final = "TF_USE_LEGACY_KERAS"
KERAS_2: Final = re.compile(
    r"tensorflow(\.compat\.v[12])?\."
    r"(layers\.|nn\.rnn_cell\.|keras\.experimental\.|keras\.optimizers\.legacy\b|keras\.layers\.experimental\.|"
    r"keras\.layers\.(DenseFeatures|LocallyConnected[12]D|CuDNNLSTM|CuDNNGRU)\b|"
    r"keras\.backend\.(learning_phase|set_learning_phase|placeholder|get_session|set_session)\b)"
    r"|keras\.optimizers\.legacy\b"
)
_OPTIMIZER: Final = re.compile(r"(tensorflow|tf_keras|keras)\b.*\boptimizers\.(\w+\.)?[A-Z]\w*$")
# Importing any of them imports the package, which chooses Keras 2 where that is still possible.
_OURS: Final = re.compile(r"tfx_tpu_trainer\.(estimator|contrib)\b")
_TENSORFLOW: Final = re.compile(r"tensorflow\b")
_SHOWN: Final = 4


def check_keras2(context: Context) -> Iterator[Finding]:
    """Tells of the names that need Keras 2, once for a program, and of arguments that Keras 3 lacks."""
    yield from _learning_rates(context)
    if _VARIABLE in context.program.text:
        return
    uses = sorted(
        (each for each in context.program.uses if KERAS_2.match(each.name)),
        key=lambda each: each.place.start,
    )
    if not uses:
        return
    ours_first = _imports_ours_first(context)
    if ours_first:
        return
    names = list(dict.fromkeys(_shown(each.name) for each in uses))
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    which = f"{', '.join(names[:_SHOWN])}{more} {'are' if len(names) > 1 else 'is'}"
    lines = sorted({each.place.line for each in uses} - {uses[0].place.line})
    verdict = Verdict.NOTE
    way = "tfx_tpu_trainer.compat chooses Keras 2 by itself."
    edit = f"python -m tfx_tpu_trainer.compat PROGRAM; or {_VARIABLE}=1 python PROGRAM"
    if ours_first is False:
        verdict = Verdict.EDIT
        way = "tfx_tpu_trainer.estimator chooses Keras 2, but is imported after tensorflow."
        edit = (
            f"import tfx_tpu_trainer.estimator before tensorflow; or {_VARIABLE}=1 python PROGRAM"
        )
    finding = context.finding(
        uses[0].place,
        verdict,
        theme="keras",
        name="Keras 2",
        says=f"{which} Keras 2's: an AttributeError under Keras 3, TensorFlow 2.16's default. {way}",
        edit=edit,
    )
    yield dataclasses.replace(finding, also_lines=tuple(lines))


def _imports_ours_first(context: Context) -> bool | None:
    """Tells whether the program imports our estimators before TensorFlow; `None` where it does not import them."""
    imports = sorted(
        (each for each in context.program.bindings if not (each.assigned or each.in_function)),
        key=lambda each: each.place.start,
    )
    ours = [each for each in imports if _OURS.match(each.imported)]
    if not ours:
        return None
    theirs = [each for each in imports if _TENSORFLOW.match(each.imported)]
    return not theirs or ours[0].place.start < theirs[0].place.start


def _learning_rates(context: Context) -> Iterator[Finding]:
    """`Adam(lr=0.1)`: a name that Keras 2 took with a warning, and Keras 3 refuses."""
    for call in context.program.calls:
        if not _OPTIMIZER.match(call.name):
            continue
        for argument in call.node.keywords:
            if argument.arg == "lr":
                place = context.program.place_of_keyword(argument)
                yield context.finding(
                    place,
                    Verdict.EDIT,
                    theme="keras",
                    name=f"{call.attribute}(lr=...)",
                    says="Keras 3 has no lr: a ValueError. All versions have learning_rate.",
                    edit="learning_rate",
                    edits=(place.replaced_by("learning_rate"),),
                )


def _shown(name: str) -> str:
    name = re.sub(r"^tensorflow(\.compat\.v[12])?\.", "tf.", name)
    parts = name.split(".")
    classes = [i for i, part in enumerate(parts) if part[:1].isupper()]
    return ".".join(parts[: classes[0] + 1] if classes else parts)
