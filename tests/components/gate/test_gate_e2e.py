"""The gate between runs of a pipeline: the first model, one that is compared, one that is worse."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow_model_analysis as tfma

from tests.pipeline_runs import PipelineRun, completed, run_local
from tfx_tpu_trainer.components.evaluation import read_eval_metrics
from tfx_tpu_trainer.components.evaluation._models import list_models
from tfx_tpu_trainer.workbench.project.metadata import State

pytestmark = pytest.mark.e2e


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


def test_the_first_model_is_rubber_stamped_and_pushed(digits_run: PipelineRun) -> None:
    assert "blessed (rubber stamp: no baseline model yet" in digits_run.report.verdict
    assert digits_run.report.pushed is not None
    evaluation = digits_run.output_folder("EvalMetricsGate", "evaluation")
    assert tfma.load_validation_result(str(evaluation)).rubber_stamp


# test_gate.py compares the models of four runs.
@pytest.mark.sweep
def test_the_second_is_compared_with_the_first_and_pushed(compared: PipelineRun) -> None:
    assert compared.report.blessed is True
    assert "rubber stamp" not in compared.report.verdict
    assert "the baseline's" in compared.report.verdict
    assert compared.report.pushed is not None
    evaluation = compared.output_folder("EvalMetricsGate", "evaluation")
    stored = tfma.load_eval_result(str(evaluation), model_name="candidate").get_metrics_for_slice()
    assert stored["accuracy"] == {"doubleValue": _accuracy(compared)}
    assert "accuracy_diff" in stored


@pytest.mark.sweep
def test_a_worse_one_is_neither_blessed_nor_pushed_and_the_summary_says_why(
    compared: PipelineRun, worse: PipelineRun
) -> None:
    assert worse.statuses["Transform"].state is State.CACHED
    assert worse.statuses["TpuTrainer"].state is State.COMPLETE
    # That is no failure of the run.
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
def test_the_evaluations_of_trainer_and_gate_hold_every_digit(compared: PipelineRun) -> None:
    metrics = read_eval_metrics(str(compared.output_folder("TpuTrainer", "model")))
    for node, model_name in (("TpuTrainer", ""), ("EvalMetricsGate", "candidate")):
        folder = str(compared.output_folder(node, "evaluation"))
        stored = tfma.load_eval_result(folder, model_name=model_name).get_metrics_for_slice()
        for name, value in metrics.overall.items():
            assert stored[name] == {"doubleValue": value}


@pytest.mark.sweep
def test_runs_are_listed_by_their_accuracy(compared: PipelineRun, worse: PipelineRun) -> None:
    models = list_models(compared.root / "metadata.sqlite", metric="accuracy", pipeline="digits")
    values = [model.metrics["accuracy"] for model in models]
    assert values == sorted(values, reverse=True)
    by_uri = {Path(model.uri): model for model in models}
    found = by_uri[worse.output_folder("TpuTrainer", "model")]
    assert found.runs[0] == worse.name
    assert found.global_step == 20
    assert found.metrics["accuracy"] == pytest.approx(_accuracy(worse), rel=1e-5)
