"""Runs pipelines whose gate finds its baseline in ML Metadata, or by the pointer of a LastBlessedModel."""

from __future__ import annotations

import json
from pathlib import Path

import ml_metadata as mlmd
import pytest
import tensorflow_model_analysis as tfma
from tfx import v1 as tfx

from tests.bad_input import case
from tests.components.evaluation import thresholds as t
from tests.components.trainer.gate_producers import produce_model
from tests.pipeline_runs import PipelineRun, completed, run_local
from tfx_tpu_trainer.components import EvalMetricsGate, LastBlessedModel
from tfx_tpu_trainer.components.evaluation import read_eval_metrics
from tfx_tpu_trainer.components.evaluation._models import list_models
from tfx_tpu_trainer.workbench.project.metadata import State


@pytest.fixture(scope="module")
def compared(cores_run: PipelineRun) -> PipelineRun:
    return cores_run


@pytest.fixture(scope="module")
def worse(compared: PipelineRun) -> PipelineRun:
    # Good enough by its value; what fails it is the comparison.
    overrides = ["trainer.train_steps=20", "gate.at_least={accuracy: 0.01}"]
    return completed(run_local("digits", compared.root, *overrides))


def _accuracy(run: PipelineRun) -> float:
    metrics = read_eval_metrics(str(run.output_folder("TpuTrainer", "model")))
    assert metrics is not None
    return metrics.overall["accuracy"]


@pytest.mark.e2e
def test_the_first_model_is_rubber_stamped_and_pushed(digits_run: PipelineRun) -> None:
    assert "blessed (first model: no baseline yet" in digits_run.report.verdict
    assert digits_run.report.pushed is not None
    evaluation = digits_run.output_folder("EvalMetricsGate", "evaluation")
    assert tfma.load_validation_result(str(evaluation)).rubber_stamp


# test_gate.py compares the models of four runs.
@pytest.mark.sweep
@pytest.mark.e2e
def test_the_second_is_compared_with_the_first_and_pushed(compared: PipelineRun) -> None:
    assert compared.report.blessed is True
    assert "first model" not in compared.report.verdict
    assert "the baseline's" in compared.report.verdict
    assert compared.report.pushed is not None
    evaluation = compared.output_folder("EvalMetricsGate", "evaluation")
    stored = tfma.load_eval_result(str(evaluation), model_name="candidate").get_metrics_for_slice()
    assert stored["accuracy"] == {"doubleValue": _accuracy(compared)}
    assert "accuracy_diff" in stored


@pytest.mark.sweep
@pytest.mark.e2e
def test_a_worse_one_is_neither_blessed_nor_pushed_and_the_summary_says_why(
    compared: PipelineRun, worse: PipelineRun
) -> None:
    assert worse.statuses["Transform"].state is State.CACHED
    assert worse.statuses["TpuTrainer"].state is State.COMPLETE
    # That is not a failure of the run.
    assert worse.report.blessed is False
    assert worse.report.pushed is None
    assert "nowhere" in worse.output
    assert "but must be a change >= -0.02" in worse.report.verdict
    assert "not blessed: accuracy is " in worse.output
    evaluation = str(worse.output_folder("EvalMetricsGate", "evaluation"))
    baseline = tfma.load_eval_result(evaluation, model_name="baseline").get_metrics_for_slice()
    assert baseline["accuracy"] == {"doubleValue": _accuracy(compared)}
    blessing = worse.output_folder("EvalMetricsGate", "blessing")
    assert [path.name for path in blessing.iterdir()] == ["NOT_BLESSED"]


@pytest.mark.sweep
@pytest.mark.e2e
def test_the_evaluations_of_trainer_and_gate_hold_every_digit(compared: PipelineRun) -> None:
    metrics = read_eval_metrics(str(compared.output_folder("TpuTrainer", "model")))
    for node, model_name in (("TpuTrainer", ""), ("EvalMetricsGate", "candidate")):
        folder = str(compared.output_folder(node, "evaluation"))
        stored = tfma.load_eval_result(folder, model_name=model_name).get_metrics_for_slice()
        for name, value in metrics.overall.items():
            assert stored[name] == {"doubleValue": value}


@pytest.mark.sweep
@pytest.mark.e2e
def test_runs_are_listed_by_their_accuracy(compared: PipelineRun, worse: PipelineRun) -> None:
    models = list_models(compared.root / "metadata.sqlite", metric="accuracy", pipeline="digits")
    values = [model.metrics["accuracy"] for model in models]
    assert values == sorted(values, reverse=True)
    by_uri = {Path(model.uri): model for model in models}
    found = by_uri[worse.output_folder("TpuTrainer", "model")]
    assert found.runs[0] == worse.name
    assert found.global_step == 20
    assert found.metrics["accuracy"] == pytest.approx(_accuracy(worse), rel=1e-5)


_CONFIG = t.config(accuracy=t.change(-0.01, value_lower=0.7))


@pytest.mark.parametrize(
    "pointer",
    [
        case(
            "component",
            f"`LastBlessedModel(pointer={pointer!r})`",
            f"LastBlessedModel: pointer={pointer!r} is not the path of a .json file",
            "such as 'gs://bucket/taxi/blessed.json'",
            values=(pointer,),
        )
        for pointer in ("", "gs://bucket/taxi", "blessed.json", 5)
    ],
)
def test_a_pointer_is_the_path_of_a_json_file(pointer, refused):
    with refused(ValueError):
        LastBlessedModel(pointer=pointer)


@pytest.mark.e2e
def test_runs_of_a_pipeline_find_their_baselines_by_the_pointer(tmp_path):
    connection = tfx.orchestration.metadata.sqlite_metadata_connection_config(
        str(tmp_path / "metadata.sqlite")
    )
    pointer = str(tmp_path / "gate" / "blessed.json")

    def newest(type_name):
        artifacts = mlmd.MetadataStore(connection).get_artifacts_by_type(type_name)
        return max(artifacts, key=lambda artifact: artifact.id)

    def run(accuracy):
        producer = produce_model(accuracy=accuracy)
        baseline = LastBlessedModel(pointer=pointer)
        gate = EvalMetricsGate(
            model=producer.outputs["model"],
            evaluation=producer.outputs["evaluation"],
            baseline_model=baseline.outputs["model"],
            eval_config=_CONFIG,
            pointer=pointer,
        )
        pipeline = tfx.dsl.Pipeline(
            pipeline_name="gate",
            pipeline_root=str(tmp_path / "root"),
            metadata_connection_config=connection,
            components=[producer, baseline, gate],
            # What LastBlessedModel finds must not come from the cache of another day.
            enable_cache=True,
        )
        tfx.orchestration.LocalDagRunner().run(pipeline)
        properties = newest("ModelBlessing").custom_properties
        return properties["blessed"].int_value, properties["verdict"].string_value

    def pointed_to():
        with open(pointer, encoding="utf-8") as file:
            return json.load(file)

    blessed, verdict = run(0.8)
    assert blessed == 1 and verdict.startswith("blessed (first model")
    first = pointed_to()
    assert first["metrics"] == {"accuracy": 0.8, "loss": pytest.approx(0.2)}

    blessed, verdict = run(0.81)
    assert blessed == 1 and "accuracy is 0.81, the baseline's 0.8" in verdict
    second = pointed_to()
    assert second["uri"] != first["uri"]

    blessed, verdict = run(0.75)
    assert blessed == 0 and f"a change of {0.75 - 0.81:.6g}" in verdict
    assert pointed_to() == second

    blessed, verdict = run(0.82)
    assert blessed == 1 and "accuracy is 0.82, the baseline's 0.81" in verdict
