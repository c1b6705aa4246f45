"""Fills a training's artifacts and page: completely or not at all, and never from a diverged model."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging as absl_logging

from tfx_tpu_trainer._support.messages import in_one_line, printable
from tfx_tpu_trainer._support.progress import EVALUATE, TRAIN, Progress
from tfx_tpu_trainer._support.whole_files import file_written_whole, sweep
from tfx_tpu_trainer.components.evaluation import (
    EvalMetrics,
    metric_properties,
    set_properties,
    write_eval_metrics,
    write_model_evaluation,
)
from tfx_tpu_trainer.components.evaluation._eval_metrics import LOSS, LOSS_BY_ROWS
from tfx_tpu_trainer.components.report import (
    Lineage,
    RunData,
    gather,
    render,
    versions,
    write_page,
)
from tfx_tpu_trainer.components.trainer.resume import code_of
from tfx_tpu_trainer.components.trainer.train_job import TrainJob
from tfx_tpu_trainer.estimator.extending import RowSample

TRAINING = "training"
"""Custom property of a Model: the digest of its training's inputs, code and settings."""

RAN_ON = "ran_on"
"""Custom property of a Model and its evaluation: where it was trained, such as "4 emulated TPU cores"."""

PAGE = "page"
"""Custom property of a Model: the path of its training's page."""

_MOST_NAMES = 5
_MOST_METRICS = 8

_logger = logging.getLogger(__name__)


class ModelDivergedError(RuntimeError):
    """The metrics or variables of a trained model are not finite."""


@contextlib.contextmanager
def emptied_on_failure(
    *folders: str, are_ours: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Removes what the block wrote into folders if it fails.

    The folders stay: TFX's launcher removes those of a failed execution, and if one is missing it reports that instead
    of the failure.
    """
    try:
        yield
    except BaseException:
        for folder in folders:
            if tf.io.gfile.isdir(folder) and are_ours():
                tf.io.gfile.rmtree(folder)
                tf.io.gfile.makedirs(folder)
        raise


def copy_folder(source: str, target: str) -> None:
    """Copies a folder recursively."""
    source = source.rstrip("/")
    tf.io.gfile.makedirs(target)
    for folder, _, names in tf.io.gfile.walk(source):
        into = os.path.join(target, folder[len(source) :].strip("/"))
        tf.io.gfile.makedirs(into)
        for name in names:
            with file_written_whole(os.path.join(into, name)) as written:
                tf.io.gfile.copy(os.path.join(folder, name), written)


def all_or_nothing(
    job: TrainJob, *, are_ours: Callable[[], bool]
) -> contextlib.AbstractContextManager[None]:
    """Empties the model's and its evaluation's folders if the block fails.

    Checkpoints and events stay, since another attempt resumes from them.
    """
    evaluation = [job.evaluation.uri] if job.evaluation else []
    return emptied_on_failure(job.model.uri, *evaluation, are_ours=are_ours)


def sweep_outputs(job: TrainJob) -> None:
    """Removes partial files that a killed attempt left."""
    for artifact in filter(None, (job.model, job.model_run, job.evaluation)):
        for path in sweep(artifact.uri):
            _logger.info("Removed %s, left behind by an earlier attempt", printable(path))


def write_metrics(job: TrainJob, metrics: EvalMetrics, *, ran_on: str | None = None) -> None:
    """Writes the exported model's metrics: into its folder, as its evaluation, and as properties of both."""
    write_eval_metrics(job.model.uri, metrics)
    properties = metric_properties(metrics)
    if ran_on is not None:
        properties[RAN_ON] = ran_on
    set_properties(job.model, properties)
    if job.evaluation:
        write_model_evaluation(job.evaluation.uri, metrics, model_location=job.model.uri)
        set_properties(job.evaluation, properties)


def check_finite(metrics: EvalMetrics) -> None:
    """Raises if the metrics or the evaluated checkpoint show a diverged model.

    The last step's loss may be finite while the step made variables infinite: the training would then end without an
    error, and only the served model would show NaN.
    """
    found = [f"{name} is {metrics.overall[name]}" for name in metrics.diverged]
    if metrics.checkpoint and tf.io.gfile.exists(f"{metrics.checkpoint}.index"):
        variables = list(_not_finite(metrics.checkpoint))
        shown = ", ".join(variables[:_MOST_NAMES])
        more = len(variables) - _MOST_NAMES
        if variables:
            found.append(
                f"{shown}{f' and {more} more variables' if more > 0 else ''} in {metrics.checkpoint}"
            )
    if found:
        raise ModelDivergedError(
            f"the model has diverged by step {metrics.global_step}, and is not exported: "
            f"{'; '.join(found)}. Lower the learning rate, clip the gradients, or stop earlier "
            "(early_stopping_patience exports the best checkpoint)"
        )


def _not_finite(checkpoint: str) -> Iterator[str]:
    reader = tf.train.load_checkpoint(checkpoint)
    for name, dtype in sorted(reader.get_variable_to_dtype_map().items()):
        if dtype.is_floating or dtype.is_complex:
            # One at a time: a model may nearly fill the memory.
            values = reader.get_tensor(name)
            wrong = values.size - np.count_nonzero(np.isfinite(values))
            if wrong:
                yield f"{name} ({wrong:,} of {values.size:,} values are NaN or Inf)"


def write_run_page(
    job: TrainJob,
    folder: str,
    progress: Progress,
    *,
    identity: str | None = None,
    rows: RowSample | None = None,
    batch_size: int | None = None,
    stopped: BaseException | None = None,
) -> tuple[RunData, str] | None:
    """Writes `run.html` and `run.json`; returns the page's summary and path.

    A failure is only logged: the training is worth more than its page.
    """
    try:
        lineage = Lineage(
            ran_on=where_it_ran(progress),
            inputs={
                key: "; ".join(artifact.uri for artifact in artifacts)
                for key, artifacts in sorted(job.inputs.items())
            },
            settings=_settings(job),
            versions=versions(),
            identity=identity,
            code=code_of(job.source),
            source=job.source_texts,
            rows=_rows_seen(folder, rows=rows, batch_size=batch_size),
        )
        run = gather(
            folder,
            title=_title(job),
            model=job.model.uri,
            lineage=lineage,
            rows=rows,
            class_names=_class_names(job),
            statistics=next((each.uri for each in job.inputs.get("statistics") or ()), None),
            stopped=None if stopped is None else in_one_line(stopped),
        )
        # The seconds of the page hold those of its charts, which are drawn once.
        render(run)
        lineage = dataclasses.replace(lineage, phase_seconds=progress.breakdown())
        run = dataclasses.replace(run, lineage=lineage)
        # No one reads the artifact of a failed training: TFX removes it.
        elsewhere = () if stopped or job.page is None else (job.page.path,)
        path = write_page(run, folder, copies=elsewhere)
    except Exception as error:  # Any error is only logged, since the model is trained.
        _logger.warning("The page of this training could not be written: %s", in_one_line(error))
        return None
    if not stopped:
        job.model.set_string_custom_property(PAGE, path)
    return run, path


def tell_result(
    component: str,
    result: str,
    *,
    metrics: EvalMetrics,
    page: str | None,
    baseline: EvalMetrics | None = None,
    level: int = absl_logging.INFO,
) -> None:
    """Logs a component's result in three lines: the verdict, the metrics, and the page's path.

    TFX's templates and entry points show absl's INFO messages, but only warnings of other loggers.
    """
    absl_logging.log(level, "%s: %s", component, result)
    absl_logging.info("%s: %s", component, _metrics_in_words(metrics, baseline))
    if page:
        absl_logging.info("%s: the page is %s", component, printable(page))


def _metrics_in_words(metrics: EvalMetrics, baseline: EvalMetrics | None) -> str:
    # The mean loss over rows does not depend on the batch size, unlike the one over batches.
    names = [
        name for name in metrics.overall if name != LOSS or LOSS_BY_ROWS not in metrics.overall
    ]
    words = []
    for name in names[:_MOST_METRICS]:
        said = f"{name} {metrics.overall[name]:.4g}"
        if baseline and name in baseline.overall:
            said += f" (baseline {baseline.overall[name]:.4g})"
        words.append(said)
    if len(names) > _MOST_METRICS:
        words.append(f"{len(names) - _MOST_METRICS} more on the page")
    rows = "" if metrics.num_examples is None else f" on {metrics.num_examples:,} rows"
    return f"{', '.join(words)}{rows}"


def _title(job: TrainJob) -> str:
    """Returns what was trained and when: the pipeline's name, and the component's if it is not the default."""
    node = "" if job.pipeline and job.node == "TpuTrainer" else job.node
    what = ": ".join(filter(None, (job.pipeline, node)))
    return f"{what}, {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}"


def _class_names(job: TrainJob) -> tuple[str, ...]:
    """Returns the class names given in `params`."""
    names = job.settings.params.get("class_names")
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _rows_seen(folder: str, *, rows: RowSample | None, batch_size: int | None) -> dict[str, int]:
    """Returns how many rows the model read in its training, up to the last checkpoint, and in its evaluation."""
    seen = {}
    path = tf.train.latest_checkpoint(folder)
    step = path and path.rpartition("-")[2]
    if step and step.isdecimal() and batch_size is not None:
        seen["training"] = int(step) * batch_size
    if rows is not None:
        seen["evaluation of the exported checkpoint"] = rows.seen
    return seen


def where_it_ran(progress: Progress) -> str | None:
    """Describes where a model was trained; `None` if unknown."""
    # A retry may have had no steps left to train.
    return progress.ran_on.get(TRAIN) or progress.ran_on.get(EVALUATE)


def _settings(job: TrainJob) -> dict[str, str]:
    """Returns settings that differ from their defaults, and values for the user's functions."""
    settings: dict[str, Any] = {
        "train_steps": job.train_steps,
        "eval_steps": job.eval_steps,
        **job.settings.model_dump(exclude_defaults=True, exclude={"params"}),
        **_below("params", job.settings.params),
        **_below("hyperparameters", job.hyperparameters),
        **_below("custom_config", job.custom_config or {}),
    }
    return {name: str(value) for name, value in sorted(settings.items()) if value is not None}


def _below(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}.{key}": value for key, value in values.items()}
