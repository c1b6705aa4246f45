"""Checks before the first step that a TPU can run the model: its export, its compilation, its training."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import tensorflow as tf

from tfx_tpu_trainer._support.progress import TRACE, phase
from tfx_tpu_trainer.components.report._gathering import PREFLIGHT_FILE
from tfx_tpu_trainer.components.trainer.settings import TrainSettings
from tfx_tpu_trainer.components.trainer.train_job import TrainJob
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator.extending import MetaGraph
from tfx_tpu_trainer.preflight import (
    CompiledStep,
    CompilerOptions,
    InputError,
    LoweredStep,
    PreflightReport,
    PreflightUnavailableError,
    compile_steps,
    lower_meta_graph,
    lower_saved_model,
    measure_input,
    preflight,
    write_html,
    write_json,
)
from tfx_tpu_trainer.serving import Finding, ServingCheckError, check_placement, place_ops

v1 = tf.compat.v1

_logger = logging.getLogger(__name__)

CHECK = "serve, tpu: compiles"
"""Name of the check."""

DEFAULT_TARGET = "v5e:1x1"
"""The slice to compile for if none was named: the smallest TPU that serves today."""

# Stages whose problems do not come from the model.
_OF_THIS_MACHINE = ("crash", "set-up", "timeout")

FOLDER = os.path.dirname(PREFLIGHT_FILE)
"""Folder of the report, in the ModelRun artifact: `report.json` and `report.html`."""

_INPUT_SECONDS = 3.0


class PreflightError(RuntimeError):
    """The requested TPU slice can't train the model."""


class CheckedTpuGraph(NamedTuple):
    """The metagraph for TPU hosts, and the result of compiling it."""

    meta_graph: MetaGraph
    finding: Finding


def check_tpu_graph(
    estimator: tpu.TPUEstimator,
    receiver_fn: Callable[[], Any],
    settings: TrainSettings,
) -> CheckedTpuGraph | None:
    """Builds the metagraph for TPU hosts, and compiles it if the settings request a check of the export."""
    try:
        with phase(TRACE):
            (built,) = estimator.build_graphs(receiver_fn)
    except (
        Exception
    ) as error:  # Any error comes from the TPU graph: the graph for CPU hosts has been built.
        if settings.requires_tpu_graph:
            raise
        _leave_out(f"{type(error).__name__}: {error}")
        return None
    if settings.serving_check == "off":
        return CheckedTpuGraph(built, Finding("not run", "serving_check='off'"))
    definition = built.definition()
    with phase("serving check"):
        found = _check(definition, receiver_fn, settings)
    if found.outcome != "failed":
        return CheckedTpuGraph(built, found)
    problem = found.detail.rstrip(".")
    if "export_to_tpu=False" not in problem:
        problem += "; or export for CPU hosts only, with export_to_tpu=False"
    if not settings.requires_tpu_graph:
        _leave_out(problem)
        return None
    if settings.serving_check == "error":
        raise ServingCheckError(
            f"Nothing was trained: the exported model would fail its check: {CHECK}: "
            f"{problem}; or let it pass with serving_check='warn'"
        )
    _logger.warning("serving_check='warn': the exported model will fail its check: %s", problem)
    return CheckedTpuGraph(built, found)


def padded_batch_sizes(meta_graphs: Iterable[v1.MetaGraphDef]) -> tuple[int, ...]:
    """Returns the sizes that a model pads its batches to on any host; none if it does not pad."""
    placements = map(place_ops, meta_graphs)
    return next((each.batch_sizes for each in placements if each.batch_sizes), ())


def _check(
    definition: v1.MetaGraphDef, receiver_fn: Callable[[], Any], settings: TrainSettings
) -> Finding:
    if composite := _composite_features(definition, receiver_fn):
        features = " and ".join(
            f"the {kind} feature{'s' if names[1:] else ''} {', '.join(names)}"
            for kind, names in composite.items()
        )
        cures = ", ".join(_DENSE[kind] for kind in composite)
        return Finding(
            "failed",
            f"a TPU program has static shapes, so it can't take {features}; {cures}, in Transform or "
            "in a serving_input_receiver_fn of the module",
        )
    placed = check_placement(
        place_ops(definition), whole_model=settings.export_saved_model_api_version == 1
    )
    if placed.outcome == "failed":
        return placed
    rows = max(settings.warmup_batch_sizes or padded_batch_sizes([definition]), default=1)
    return check_compiles(definition, settings, rows)


def _leave_out(problem: str) -> None:
    _logger.warning(
        "The model is exported for CPU hosts only, since no TPU can run it: %s. The "
        "settings name no TPU: export_to_tpu=True makes this an error, export_to_tpu=False no warning.",
        problem.rstrip("."),
    )


def _composite_features(
    definition: v1.MetaGraphDef, receiver_fn: Callable[[], Any]
) -> dict[str, list[str]]:
    """Returns the features that enter the TPU computation as several tensors, by kind."""
    with tf.Graph().as_default():
        # In its own graph, a receiver gives its tensors the same names as in the metagraph.
        features = receiver_fn().features
    named = features if isinstance(features, Mapping) else {"features": features}
    taken = {
        source.partition(":")[0]
        for node in definition.graph_def.node
        if node.op == "TPUPartitionedCall"
        for source in node.input
    }
    found: dict[str, list[str]] = {}
    for name, feature in sorted(named.items(), key=str):
        parts = tf.nest.flatten(feature, expand_composites=True)
        if not isinstance(feature, tf.Tensor) and taken & {part.op.name for part in parts}:
            kind = "sparse" if isinstance(feature, tf.SparseTensor) else "ragged"
            found.setdefault(kind, []).append(repr(name))
    return found


_DENSE = {
    "sparse": "make sparse ones dense (tft.sparse_tensor_to_dense_with_shape)",
    "ragged": "pad ragged ones (to_tensor(shape=[None, n]))",
}


def check_compiles(model: str | v1.MetaGraphDef, settings: TrainSettings, rows: int) -> Finding:
    """Compiles the metagraph for TPU hosts for the slice in the settings."""
    target = settings.tpu.slice_name if settings.tpu else DEFAULT_TARGET
    lower = lower_saved_model if isinstance(model, str) else lower_meta_graph
    try:
        steps = lower(model, batch_size=rows)
        # The compiler can't compile what TensorFlow can't lower.
        if problem := _problem(steps, target):
            return problem
        # Serving does not have to be fast here; it only has to compile.
        options = CompilerOptions(timeout_seconds=settings.serving_check_timeout, effort=-1.0)
        compiled = compile_steps(steps, target, options)
    except PreflightUnavailableError as error:
        return Finding("not run", str(error))
    except ValueError as error:
        return Finding("failed", str(error))
    if problem := _problem(compiled, target):
        return problem
    needs = ", ".join(f"{step.name} {_share(step)}" for step in compiled)
    return Finding("passed", f"for {target}, batches of {rows}: {needs}")


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


def run_preflight(
    job: TrainJob,
    estimator: tpu.TPUEstimator,
    *,
    train_input_fn: Callable[..., Any],
    eval_input_fn: Callable[..., Any],
) -> None:
    """Compiles the training and evaluation steps for the slice, if the settings request it."""
    settings = job.settings
    if settings.preflight == "off" or settings.tpu is None:
        return
    try:
        with phase("preflight"):
            report = preflight(
                estimator,
                {"train": train_input_fn, "eval": eval_input_fn},
                tpu=settings.tpu,
                batch_size={
                    "train": settings.train_batch_size,
                    "eval": settings.rows_per_eval_batch,
                },
                steps=("train", "eval"),
                name=str(job.source),
            )
    except PreflightUnavailableError as error:
        _refuse(settings.preflight, f"the preflight can't run on this machine: {error}")
        return
    report = _with_input(report, estimator, train_input_fn)
    folder = os.path.join(job.model_run.uri, FOLDER)
    _write(report, folder)
    if report.ok:
        _logger.info("Preflight: %s. The report is in %s", report.summary(), folder)
    else:
        _refuse(settings.preflight, f"{report.summary()} The report is in {folder}.")


def _with_input(
    report: PreflightReport, estimator: tpu.TPUEstimator, input_fn: Callable[..., Any]
) -> PreflightReport:
    """Adds the training's input; the training itself reports an input that fails."""
    step = report.steps[0]
    if not step.ok or not step.batch_size:
        return report
    try:
        with phase("measuring the input"):
            speed = measure_input(
                input_fn,
                tpu_slice=report.tpu_slice,
                batch_size=step.batch_size,
                seconds=_INPUT_SECONDS,
                params=estimator.params,
                config=cast(tpu.RunConfig, estimator.config),
            )
    except InputError as error:
        _logger.warning("The preflight can't measure the input: %s", error)
        return report
    report = dataclasses.replace(report, input=speed)
    _logger.info("The training's input: %s", report.input_limit)
    return report


def _write(report: PreflightReport, folder: str) -> None:
    write_json(report, os.path.join(folder, os.path.basename(PREFLIGHT_FILE)))
    write_html(report, os.path.join(folder, "report.html"))


def _refuse(setting: str, problem: str) -> None:
    if setting == "error":
        raise PreflightError(
            f"Nothing was trained: {problem} Fix the model, or train anyway with preflight='warn'."
        )
    _logger.warning("preflight='warn': %s", problem)
