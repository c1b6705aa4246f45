"""A preflight's report as files: JSON for programs, a page for people."""

from __future__ import annotations

import json
import os
import uuid

import tensorflow as tf

from tfx_tpu_trainer.preflight.html import render_html
from tfx_tpu_trainer.preflight.report import PreflightReport
from tfx_tpu_trainer.preflight.sweep_report import Sweep


def write_json(report: PreflightReport, path: str) -> None:
    """Writes a report as JSON, whole or not at all.

    Args:
        report: The report.
        path: Where to; any path that `tf.io.gfile` knows. Its folder is made where it is missing.

    Raises:
        OSError: It cannot be written there.
    """
    _write(path, json.dumps(report.to_json(), indent=2, allow_nan=False) + "\n")


def write_html(report: PreflightReport, path: str) -> None:
    """Writes a report as one HTML page, whole or not at all.

    Args:
        report: The report.
        path: Where to, as in `write_json`.

    Raises:
        OSError: It cannot be written there.
    """
    _write(path, render_html(report))


def write_sweep(found: Sweep, path: str) -> None:
    """Writes a sweep as JSON, whole or not at all.

    Args:
        found: The sweep.
        path: Where to, as in `write_json`.

    Raises:
        OSError: It cannot be written there.
    """
    _write(path, json.dumps(found.to_json(), indent=2, allow_nan=False) + "\n")


def read_json(path: str) -> PreflightReport:
    """Reads what `write_json` wrote.

    Args:
        path: The file.

    Returns:
        The report.

    Raises:
        ValueError: The file holds no report.
        OSError: It cannot be read.
    """
    try:
        with tf.io.gfile.GFile(path) as file:
            return PreflightReport.from_json(json.loads(file.read()))
    except tf.errors.OpError as error:
        raise OSError(f"The report {path} cannot be read: {error.message}") from None
    except ValueError as error:
        raise ValueError(f"{path} holds no preflight report: {error}") from error


def _write(path: str, text: str) -> None:
    staging = f"{path}.{uuid.uuid4().hex}"
    try:
        tf.io.gfile.makedirs(os.path.dirname(path) or ".")
        with tf.io.gfile.GFile(staging, "w") as file:
            file.write(text)
        tf.io.gfile.rename(staging, path, overwrite=True)
    except tf.errors.OpError as error:
        if tf.io.gfile.exists(staging):
            tf.io.gfile.remove(staging)
        raise OSError(f"The report cannot be written to {path}: {error.message}") from None
