"""Modules that are TensorFlow's own, copied into a program and changed there."""

from __future__ import annotations

import ast
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Finding, Verdict
from tfx_tpu_trainer.compat.doctor._program import Program

# Classes of the module that TPUEstimator stood in. A program has no reason to call its own so.
_CLASSES: Final = frozenset(
    {
        "TPUEstimatorSpec",
        "TPUInfeedOutfeedSessionHook",
        "TPUInfeedOutfeedSessionHookForPrediction",
        "_Inputs",
        "_InputPipeline",
        "_InputsWithStoppingSignals",
        "_ModelFnWrapper",
        "_OpQueueContext",
        "_OpSignalOnceQueueContext",
        "_OutfeedHostCall",
        "_OutfeedHostCallHook",
        "_SetEvalIterationsHook",
        "_StopSignals",
        "_StoppingPredictHook",
        "_TPUStopAtStepHook",
    }
)
_ENOUGH: Final = 3


def copied_estimator(program: Program) -> Finding | None:
    """Says whether a program is a copy of the module of TPUEstimator."""
    classes = {each.name: each for each in program.tree.body if isinstance(each, ast.ClassDef)}
    estimator = classes.get("TPUEstimator")
    if estimator is None or len(_CLASSES & set(classes)) < _ENOUGH:
        return None
    place = program.place(estimator)
    return Finding(
        line=place.line,
        column=place.column,
        theme="tpu",
        name="class TPUEstimator",
        verdict=Verdict.EDIT,
        says=(
            "A copy of TensorFlow's TPUEstimator, built on private modules that no longer exist. "
            "Ours may already do what it changed: hooks, eval_on_tpu, host_call and metrics of a "
            "short last batch."
        ),
        edit="from tfx_tpu_trainer.estimator.tpu import TPUEstimator where this module is imported: use ours instead",
    )
