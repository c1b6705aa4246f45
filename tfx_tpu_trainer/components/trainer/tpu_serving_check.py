"""The serving check's own preflight: an exported model compiled for a TPU, where there is a compiler."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfx_tpu_trainer.preflight import (
    CompiledStep,
    CompilerOptions,
    LoweredStep,
    PreflightUnavailableError,
    compile_steps,
    lower_meta_graph,
    lower_saved_model,
)
from tfx_tpu_trainer.serving import Finding

CHECK = "serve, tpu: compiles"
"""Name of the check."""

DEFAULT_TARGET = "v5e:1x1"
"""The slice to compile for if none was named: the smallest TPU that serves today."""

# Stages of problems that say nothing of the model.
_OF_THIS_MACHINE = ("crash", "set-up", "timeout")


def check_compiles(
    model: str | tf.compat.v1.MetaGraphDef,
    *,
    batch_size: int,
    target: str,
    timeout_seconds: float,
) -> Finding:
    """Compiles what the `serve`, `tpu` metagraph has a TPU run."""
    lower = lower_saved_model if isinstance(model, str) else lower_meta_graph
    try:
        steps = lower(model, batch_size=batch_size)
        # What TensorFlow can't lower no compiler need be asked about.
        if problem := _problem(steps, target):
            return problem
        # What a model serves with need not be fast here, it must only be possible.
        options = CompilerOptions(timeout_seconds=timeout_seconds, effort=-1.0)
        compiled = compile_steps(steps, target, options)
    except PreflightUnavailableError as error:
        return Finding("not run", str(error))
    except ValueError as error:
        return Finding("failed", str(error))
    if problem := _problem(compiled, target):
        return problem
    needs = ", ".join(f"{step.name} {_share(step)}" for step in compiled)
    return Finding("passed", f"for {target}, batches of {batch_size}: {needs}")


def _problem(steps: Sequence[LoweredStep | CompiledStep], target: str) -> Finding | None:
    for step in steps:
        if step.problem is not None:
            says_nothing = step.problem.stage in _OF_THIS_MACHINE
            detail = f"for {target}: {step.name}: {step.problem}"
            return Finding("not run" if says_nothing else "failed", detail)
    return None


def _share(step: CompiledStep) -> str:
    need = step.need_bytes or 0
    return f"takes {need / 2**20:.1f} MiB ({need / step.limit_bytes:.1%}) of a device's HBM"
