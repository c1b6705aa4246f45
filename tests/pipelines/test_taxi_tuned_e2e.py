"""The taxi pipeline with a search before its training: ten trials find a better model than the default one."""

from __future__ import annotations

import json

import pytest

from tests.pipeline_runs import PipelineRun, completed, run_local

pytestmark = pytest.mark.sweep


@pytest.fixture(scope="module")
def tuned_run(tmp_path_factory: pytest.TempPathFactory) -> PipelineRun:
    root = tmp_path_factory.mktemp("tuned") / "root"
    # A trial's score is the best of its evaluations, so the trainer exports the best of its own.
    return completed(run_local("taxi", root, "tune.enabled=true", "trainer.best_metric=auc"))


def test_the_tuned_model_is_better_than_the_default(
    taxi_run: PipelineRun, tuned_run: PipelineRun
) -> None:
    results = json.loads(
        (tuned_run.output_folder("Tuner", "tuner_results") / "tuner_results.json").read_text()
    )
    assert 1 <= len(results) <= 10
    assert tuned_run.report.eval_metrics["auc"] > taxi_run.report.eval_metrics["auc"]
    assert tuned_run.report.eval_examples == taxi_run.report.eval_examples
    assert tuned_run.report.blessed is True


def test_the_trainer_has_trained_what_the_tuner_found(tuned_run: PipelineRun) -> None:
    folder = tuned_run.output_folder("Tuner", "best_hyperparameters")
    best = json.loads((folder / "best_hyperparameters.txt").read_text())["values"]
    assert sorted(best) == ["embedding_size", "hidden_units", "learning_rate"]
    report = tuned_run.report
    assert report.pushed is not None
    project = next((tuned_run.root / "tuning").iterdir())
    assert (project / "results.txt").exists()
