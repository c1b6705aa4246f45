"""Writes a training into an MLflow store: parameters, metrics, curves, page, model and the gate's verdict.

MLflow's own client writes everything after the training, from the page's data, so a slow or missing store delays
no step.
"""

from __future__ import annotations

import contextlib
import os
import platform
import posixpath
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
from absl import logging as absl_logging
from tfx import v1 as tfx

from tfx_tpu_trainer._support.file_systems import is_local, local_path
from tfx_tpu_trainer._support.imports import MissingExtraError, of_extra
from tfx_tpu_trainer._support.messages import reason_in_words
from tfx_tpu_trainer._support.progress import phase
from tfx_tpu_trainer.components.evaluation import Verdict
from tfx_tpu_trainer.components.report import RunData
from tfx_tpu_trainer.components.report._run_data import RUN_FILE
from tfx_tpu_trainer.components.trainer.artifacts import copy_folder
from tfx_tpu_trainer.components.trainer.settings import TrainSettings
from tfx_tpu_trainer.components.trainer.train_job import TrainJob
from tfx_tpu_trainer.components.trainer.values import shown

RUN = "mlflow_run"
"""Custom property of a Model: the id of its run in MLflow."""

_URI = "mlflow_tracking_uri"
# MLflow's limits for one call.
_MOST_METRICS, _MOST_PARAMETERS = 1000, 100
# The graph of CPU hosts, and its signature for tf.Examples.
_TAGS, _SIGNATURE = ("serve",), "serving_default"


def check_store(job: TrainJob) -> None:
    """Checks before the training that MLflow is installed, and its experiment can be found or made."""
    if not _is_tracked(job.settings):
        return
    uri = job.settings.mlflow_tracking_uri
    try:
        _experiment(_client(uri), job)
    except MissingExtraError:
        raise
    except (
        Exception
    ) as error:  # MLflow's, SQLAlchemy's or requests' errors, depending on the store.
        where = f"mlflow_tracking_uri={shown(uri)}" if uri else "MLFLOW_TRACKING_URI"
        raise ValueError(
            f"{where}: the training's run can't be written into this MLflow store "
            f"({reason_in_words(error)}); name a store that this host reaches, or leave out "
            "mlflow_tracking_uri and mlflow_experiment"
        ) from error


def track(job: TrainJob, run: RunData, page: str, *, params: Mapping[str, Any]) -> None:
    """Writes a training and its page into the MLflow store of the settings; logs a warning if that fails."""
    if not _is_tracked(job.settings):
        return
    try:
        with phase("MLflow"):
            run_id = _write(job, run, page, params)
    except Exception as error:  # Any error is only logged, since the model is trained.
        absl_logging.warning(
            "%s: the run could not be written into MLflow: %s", job.node, reason_in_words(error)
        )
        return
    absl_logging.info("%s: written into MLflow as run %s", job.node, run_id)
    job.model.set_string_custom_property(RUN, run_id)
    if job.settings.mlflow_tracking_uri:
        job.model.set_string_custom_property(_URI, job.settings.mlflow_tracking_uri)


def _write(job: TrainJob, run: RunData, page: str, params: Mapping[str, Any]) -> str:
    client = _client(job.settings.mlflow_tracking_uri)
    began = run.written - sum(run.lineage.phase_seconds.values())
    made = client.create_run(
        _experiment(client, job),
        start_time=int(began * 1000),
        run_name=job.pipeline_run or f"{run.title} {time.strftime('%Y-%m-%d %H:%M')}",
        tags=_tags(job, run),
    )
    run_id, ended = made.info.run_id, "KILLED"
    try:
        _log_numbers(client, run_id, run, params)
        for path in (page, os.path.join(os.path.dirname(page), RUN_FILE)):
            with tf.io.gfile.GFile(path) as file:
                client.log_text(run_id, file.read(), f"page/{os.path.basename(path)}")
        if run.exported and not run.stopped:
            _log_model(client, run_id, run)
        ended = "FAILED" if run.stopped else "FINISHED"
    finally:
        # An incomplete run must not look as if it were still running.
        client.set_terminated(run_id, ended, end_time=int(run.written * 1000))
    return run_id


def track_verdict(model: tfx.dsl.Artifact, verdict: Verdict) -> None:
    """Tags a model's MLflow run with the gate's verdict; logs a warning if that fails."""
    run_id = model.get_string_custom_property(RUN)
    if not run_id:
        return
    try:
        client = _client(model.get_string_custom_property(_URI) or None)
        blessed = "not judged" if verdict.blessed is None else str(verdict.blessed).lower()
        client.set_tag(run_id, "blessed", blessed)
        client.set_tag(run_id, "verdict", verdict.summary())
    except Exception as error:  # Any error is only logged, since the model is judged.
        absl_logging.warning(
            "The run %s in MLflow could not be tagged with the gate's verdict: %s",
            run_id,
            reason_in_words(error),
        )


def _is_tracked(settings: TrainSettings) -> bool:
    return bool(settings.mlflow_tracking_uri or settings.mlflow_experiment)


def _client(uri: str | None) -> Any:
    # Runs go to the named store only, not to MLflow's telemetry.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    with of_extra("mlflow", for_what="TpuTrainer(mlflow_tracking_uri=..., mlflow_experiment=...)"):
        import mlflow
    return mlflow.MlflowClient(uri)


def _experiment(client: Any, job: TrainJob) -> str:
    """Returns the id of a job's experiment; makes it if it is missing."""
    name = job.settings.mlflow_experiment or job.pipeline or job.node
    found = client.get_experiment_by_name(name)
    if found is None:
        return client.create_experiment(name)
    if found.lifecycle_stage != "active":
        raise ValueError(f"the experiment {name!r} is deleted: restore it, or name another one")
    return found.experiment_id


def _tags(job: TrainJob, run: RunData) -> dict[str, str]:
    known = {
        "pipeline": job.pipeline,
        "component": job.node,
        "model": job.model.uri,
        "model_run": job.model_run.uri,
        "ran_on": run.lineage.ran_on,
        "code": run.lineage.code,
        "stopped": run.stopped,
    }
    return {name: value for name, value in known.items() if value}


def _log_numbers(client: Any, run_id: str, run: RunData, params: Mapping[str, Any]) -> None:
    from mlflow.entities import Metric, Param

    # Each of the params is logged on its own, for MLflow's comparison.
    left_out = {"params", "mlflow_tracking_uri", "mlflow_experiment"}
    settings = {k: v for k, v in run.lineage.settings.items() if k not in left_out}
    settings |= {f"params.{name}": str(value) for name, value in params.items()}
    named = {_name(name): value for name, value in settings.items()}
    for batch in _batches([Param(*pair) for pair in named.items()], _MOST_PARAMETERS):
        client.log_batch(run_id, params=batch)
    # Event files were read without their steps' times.
    written = int(run.written * 1000)
    metrics = [
        Metric(_name(f"{series.source}/{series.name}"), value, written, step)
        for series in run.learning.series
        for step, value in zip(series.steps, series.values)
    ]
    if run.measured:
        step = run.measured.global_step or 0
        metrics += [
            Metric(_name(name), value, written, step)
            for name, value in run.measured.metrics.items()
        ]
    for batch in _batches(metrics, _MOST_METRICS):
        client.log_batch(run_id, metrics=batch)


def _log_model(client: Any, run_id: str, run: RunData) -> None:
    """Writes the SavedModel in MLflow's model format, for `mlflow.pyfunc.load_model`."""
    from mlflow.models import Model

    assert run.exported is not None
    with _on_disk(run.exported.path) as folder:
        client.log_artifacts(run_id, folder, "model/saved_model")
    of_cpu = next((each for each in run.exported.meta_graphs if each.tags == _TAGS), None)
    if of_cpu is None or _SIGNATURE not in {each.name for each in of_cpu.signatures}:
        return
    described = Model(artifact_path="model", run_id=run_id)
    # MLflow's flavor for a SavedModel with given tags and signature.
    described.add_flavor(
        "tensorflow",
        model_type="tf1-estimator",
        saved_model_dir="saved_model",
        meta_graph_tags=list(_TAGS),
        signature_def_key=_SIGNATURE,
    )
    described.add_flavor(
        "python_function",
        loader_module="mlflow.tensorflow",
        python_version=platform.python_version(),
    )
    client.log_text(run_id, described.to_yaml(), "model/MLmodel")


def _name(name: str) -> str:
    """Returns a name that MLflow accepts for metrics and parameters."""
    return posixpath.normpath(re.sub(r"[^\w./ -]", "_", name)).lstrip("./")


def _batches(values: list[Any], most: int) -> Iterator[list[Any]]:
    for first in range(0, len(values), most):
        yield values[first : first + most]


@contextlib.contextmanager
def _on_disk(folder: str) -> Iterator[str]:
    """Copies a folder's files to local disk, where MLflow's client reads them."""
    if is_local(folder):
        yield local_path(folder)
        return
    with tempfile.TemporaryDirectory() as copy:
        copy_folder(folder, copy)
        yield copy
