"""Tests trainings in an MLflow store: the content of runs, and the checks before the first step."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest
import tensorflow as tf
from google.protobuf import json_format
from tfx import v1 as tfx

from tests import tfx_testdata
from tests.bad_input import row
from tests.components.evaluation import thresholds as t
from tests.components.trainer.execution import Execution, artifact_of
from tfx_tpu_trainer._support.imports import MissingExtraError
from tfx_tpu_trainer.components import TpuTrainerExecutor
from tfx_tpu_trainer.components.gate.gate import EvalMetricsGateExecutor
from tfx_tpu_trainer.components.report import read_run_data
from tfx_tpu_trainer.components.trainer.tracking import _name, track, track_verdict
from tfx_tpu_trainer.components.trainer.train_job import TrainJob
from tfx_tpu_trainer.serving import load_serving

_artifacts = tfx.types.standard_artifacts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the store is, and MLflow's folder of artifacts: the one that the process is in."""
    made = tmp_path_factory.mktemp("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        # Of the environment, as MLflow's users have it.
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{made}/mlflow.db")
        yield made


@pytest.fixture(scope="module")
def trained(folder):
    execution = Execution.of_trainer(
        folder / "trained",
        params='{"width": 3}',
        eval_every_steps=10,
        export_to_tpu=0,
        mlflow_tracking_uri=os.environ["MLFLOW_TRACKING_URI"],
        mlflow_experiment="trips",
    )
    execution.run()
    outputs = {
        "evaluation": [artifact_of(_artifacts.ModelEvaluation, folder / "evaluation")],
        "blessing": [artifact_of(_artifacts.ModelBlessing, folder / "blessing")],
    }
    EvalMetricsGateExecutor().Do(
        {
            "model": execution.outputs["model"],
            "candidate_evaluation": execution.outputs["evaluation"],
        },
        outputs,
        {"eval_config": json_format.MessageToJson(t.config(accuracy=t.value(0.99)))},
    )
    return execution


@pytest.fixture
def client(trained):
    import mlflow

    return mlflow.MlflowClient()


def _only_run(client, experiment):
    found = client.get_experiment_by_name(experiment)
    (made,) = client.search_runs([found.experiment_id])
    return made


@pytest.fixture
def tracked(client):
    return _only_run(client, "trips")


@pytest.fixture
def run(trained):
    return read_run_data(trained.outputs["model_run"][0].uri)


@pytest.mark.e2e
def test_parameters_are_the_settings_and_all_params_of_the_model(tracked):
    assert tracked.data.params == {
        "label_key": tfx_testdata.LABEL,
        "train_steps": "20",
        "eval_every_steps": "10",
        "export_to_tpu": "False",
        "serving_check": "off",
        # The component's, and what the module leaves at its own.
        "params.width": "3",
        "params.learning_rate": "0.05",
    }


@pytest.mark.e2e
def test_metrics_are_those_of_the_model_and_curves_have_every_step(client, tracked, run):
    metrics = {k: v for k, v in tracked.data.metrics.items() if "/" not in k}
    assert metrics == run.measured.metrics
    for series in run.learning.series:
        kept = client.get_metric_history(tracked.info.run_id, f"{series.source}/{series.name}")
        assert [(one.step, one.value) for one in kept] == list(zip(series.steps, series.values))
    evaluated = client.get_metric_history(tracked.info.run_id, "eval/accuracy")
    assert [one.step for one in evaluated] == [10, 20]


@pytest.mark.e2e
def test_page_and_model_are_its_artifacts(client, tracked, trained, folder):
    import mlflow

    run_id = tracked.info.run_id
    for name in ("run.html", "run.json"):
        kept = client.download_artifacts(run_id, f"page/{name}", str(folder))
        there = pathlib.Path(trained.outputs["model_run"][0].uri, name)
        assert pathlib.Path(kept).read_bytes() == there.read_bytes()
    (path, *_) = tf.io.gfile.glob(os.path.join(tfx_testdata.RAW_EXAMPLES, "Split-eval", "*"))
    rows = [each.numpy() for each in tf.data.TFRecordDataset(path, "GZIP").take(3)]
    loaded = mlflow.pyfunc.load_model(f"runs:/{run_id}/model").predict({"examples": rows})
    served = load_serving(trained.serving_dir).signatures["serving_default"](
        examples=tf.constant(rows)
    )
    assert loaded["probabilities"].tolist() == served["probabilities"].numpy()[:, 0].tolist()


@pytest.mark.e2e
def test_tags_say_what_it_is_and_what_the_gate_said(tracked, trained, run):
    assert tracked.info.status == "FINISHED"
    took = (tracked.info.end_time - tracked.info.start_time) / 1000
    assert took == pytest.approx(sum(run.lineage.phase_seconds.values()), abs=0.002)
    tags = tracked.data.tags
    assert tags["model"] == trained.model.uri
    assert tags["ran_on"] == "this host"
    assert tags["blessed"] == "false"
    accuracy = run.measured.metrics["accuracy"]
    assert tags["verdict"] == f"not blessed: accuracy is {accuracy:.6g}, but must be >= 0.99"


@pytest.mark.e2e
def test_a_training_that_fails_is_a_failed_run_of_the_pipelines_experiment(client, tmp_path):
    # The store is that of the environment.
    execution = Execution.of_trainer(
        tmp_path, steps=1, params='{"learning_rate": 1e39}', mlflow_experiment="fails"
    )
    with pytest.raises(Exception, match="diverged"):
        execution.run()
    failed = _only_run(client, "fails")
    assert failed.info.status == "FAILED"
    assert "has diverged by step 1" in failed.data.tags["stopped"]
    assert [each.path for each in client.list_artifacts(failed.info.run_id)] == ["page"]


@pytest.mark.e2e
def test_a_run_that_can_not_be_written_whole_is_ended_with_a_warning(
    client, trained, run, tmp_path, caplog
):
    (tmp_path / "file").touch()
    client.create_experiment("full", artifact_location=str(tmp_path / "file" / "artifacts"))
    job = TrainJob.from_execution(
        trained.inputs,
        trained.outputs,
        {**trained.properties, "mlflow_experiment": "full"},
        read_fn_args=TpuTrainerExecutor()._GetFnArgs,
    )
    page = os.path.join(job.model_run.uri, "run.html")
    # More than MLflow takes at once, two of them with one name in MLflow.
    params = {"a'": 1, 'a"': 2, **{f"p{i}": i for i in range(150)}}
    with caplog.at_level("WARNING", logger="absl"):
        track(job, run, page, params=params)
    assert "Trainer: the run could not be written into MLflow: NotADirectoryError" in caplog.text
    made = _only_run(client, "full")
    assert made.info.status == "KILLED"
    assert made.data.params["params.p149"] == "149"
    assert made.data.params["params.a_"] == "2"


def test_a_verdict_that_can_not_be_written_costs_a_warning(client, caplog):
    model = artifact_of(_artifacts.Model, "/model")
    model.set_string_custom_property("mlflow_run", "gone")
    with caplog.at_level("WARNING", logger="absl"):
        track_verdict(model, verdict=None)
    assert "The run gone in MLflow could not be tagged with the gate's verdict: " in caplog.text


@pytest.mark.parametrize("name", ["recall: class 'a'", "../loss", "a//b", "täglich", "é%/x"])
def test_any_name_becomes_one_that_mlflow_takes(client, name):
    made = client.create_run("0").info.run_id
    client.log_metric(made, _name(name), 1.0)
    client.log_param(made, _name(name), "x")


@row(
    "component",
    "`mlflow_experiment` without the extra `mlflow`",
    "needs mlflow, which is not installed",
    "pip install 'tfx-tpu-trainer[mlflow]'",
)
def test_without_mlflow_nothing_is_trained(tmp_path, monkeypatch, refused):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    execution = Execution.of_trainer(tmp_path, mlflow_experiment="trips")
    with refused(MissingExtraError):
        execution.run()
    assert os.listdir(execution.outputs["model_run"][0].uri) == []


@row(
    "component",
    "`mlflow_tracking_uri` of a store that can't be used",
    "mlflow_tracking_uri='mlruns': the training's run can't be written into this MLflow store (",
    "name a store that this host reaches",
)
def test_a_store_that_does_not_answer_is_told_before_the_training(tmp_path, refused):
    # A folder, which MLflow 3 no longer takes.
    execution = Execution.of_trainer(tmp_path, mlflow_tracking_uri="mlruns")
    with refused(ValueError):
        execution.run()
    assert os.listdir(execution.outputs["model_run"][0].uri) == []
