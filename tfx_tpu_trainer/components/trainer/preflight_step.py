"""What comes before a training that asks for it: the TPU compiler on its steps."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable
from typing import Any, cast

from tfx_tpu_trainer._support.progress import phase
from tfx_tpu_trainer.components.report._gathering import PREFLIGHT_FILE
from tfx_tpu_trainer.components.trainer.train_job import TrainJob
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.preflight import (
    InputError,
    PreflightReport,
    PreflightUnavailableError,
    measure_input,
    preflight,
    write_html,
    write_json,
)

FOLDER = os.path.dirname(PREFLIGHT_FILE)
"""Folder of the report, in the ModelRun artifact: `report.json` and `report.html`."""

_INPUT_SECONDS = 3.0

_logger = logging.getLogger(__name__)


class PreflightError(RuntimeError):
    """A model that the TPU slice asked for cannot train."""


def check_before_training(
    job: TrainJob,
    estimator: tpu.TPUEstimator,
    *,
    train_input_fn: Callable[..., Any],
    eval_input_fn: Callable[..., Any],
) -> None:
    """Compiles the training and evaluation steps for the slice, if the settings ask for it."""
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
    """Adds what the training's input delivers; an input that fails is the training's to report."""
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
