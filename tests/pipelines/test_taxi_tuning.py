"""The taxi pipeline's Tuner, as it is declared."""

from __future__ import annotations

import json
from typing import Any

import keras_tuner
import pytest

from pipelines.taxi.tuning import search_space
from tests.pipeline_runs import PipelineRun, completed, run_local
from tfx_tpu_trainer.workbench.project.config_file import load_config
from tfx_tpu_trainer.workbench.project.project import find_pipeline


def _nodes(*overrides: str) -> dict[str, Any]:
    taxi = find_pipeline("taxi")
    config = load_config(
        taxi.config_class(),
        taxi.config_file,
        overrides=overrides,
        values={"root": "taxi-root", "data": "taxi-data"},
    )
    return {node.id: node for node in taxi.create_pipeline(config).components}


def _settings(nodes: dict[str, Any]) -> dict[str, Any]:
    return json.loads(nodes["Tuner"].exec_properties["custom_config"])


def test_there_is_none_unless_it_is_asked_for() -> None:
    assert "Tuner" not in _nodes()


def test_the_trainer_takes_its_best_hyperparameters() -> None:
    nodes = _nodes("tune.enabled=true")
    (channel,) = [nodes["TpuTrainer"].inputs["hyperparameters"]]
    assert channel.producer_component_id == "Tuner" and channel.output_key == "best_hyperparameters"


def test_trials_train_as_the_trainer_does() -> None:
    nodes = _nodes("tune.enabled=true", "trainer.train_batch_size=32", "trainer.tf_random_seed=5")
    settings = _settings(nodes)
    assert settings["tpu_trainer"]["train_batch_size"] == 32
    assert settings["tpu_trainer"]["tf_random_seed"] == 5
    assert "use_tpu" not in settings["tpu_trainer"]
    assert settings["tuning"]["directory"] == "taxi-root/tuning"
    # As often as the training evaluates on the way.
    assert settings["tuning"]["evaluations"] == 1000 // 250
    assert settings["tuning"]["patience"] is None
    steps = json.loads(nodes["Tuner"].exec_properties["train_args"])["num_steps"]
    assert steps == 1000 == settings["tpu_trainer"]["params"]["decay_steps"]


def test_shorter_trials_have_a_schedule_of_their_own_length() -> None:
    nodes = _nodes("tune.enabled=true", "tune.train_steps=300")
    assert _settings(nodes)["tpu_trainer"]["params"]["decay_steps"] == 300
    assert json.loads(nodes["Tuner"].exec_properties["train_args"])["num_steps"] == 300
    assert json.loads(nodes["TpuTrainer"].exec_properties["params"])["decay_steps"] == 1000


def test_a_trial_stops_as_the_training_would_unless_the_search_says_otherwise() -> None:
    stops = ("trainer.best_metric=auc", "trainer.early_stopping_patience=3")
    search = _settings(_nodes("tune.enabled=true", *stops, "trainer.eval_every_steps=100"))[
        "tuning"
    ]
    assert (search["evaluations"], search["patience"]) == (10, 3)
    own = ("tune.evaluations=2", "tune.patience=1")
    search = _settings(_nodes("tune.enabled=true", *stops, *own))["tuning"]
    assert (search["evaluations"], search["patience"]) == (2, 1)
    search = _settings(_nodes("tune.enabled=true", "tune.oracle=hyperband"))["tuning"]
    assert "evaluations" not in search


@pytest.mark.parametrize("master", ["emulated", "grpc://10.0.0.1:8470"])
def test_trials_run_on_emulated_cores_and_never_ask_for_a_tpu(master: str) -> None:
    nodes = _nodes("tune.enabled=true", f"trainer.master={master}", "trainer.use_tpu=true")
    settings = _settings(nodes)["tpu_trainer"]
    assert settings.get("use_tpu", False) is (master == "emulated")
    assert settings.get("master") == ("emulated" if master == "emulated" else None)


def test_the_default_of_the_search_is_the_model_of_the_config() -> None:
    taxi = find_pipeline("taxi")
    model = load_config(taxi.config_class(), taxi.config_file).model
    assert search_space(keras_tuner.HyperParameters()) == {
        "learning_rate": model.learning_rate,
        "embedding_size": model.embedding_size,
        "hidden_units": list(model.hidden_units),
    }


@pytest.fixture(scope="module")
def tuned_run(tmp_path_factory: pytest.TempPathFactory) -> PipelineRun:
    root = tmp_path_factory.mktemp("tuned") / "root"
    # A trial's score is its best evaluation, so the trainer exports its own best.
    return completed(run_local("taxi", root, "tune.enabled=true", "trainer.best_metric=auc"))


@pytest.mark.sweep
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


@pytest.mark.sweep
def test_the_trainer_has_trained_what_the_tuner_found(tuned_run: PipelineRun) -> None:
    folder = tuned_run.output_folder("Tuner", "best_hyperparameters")
    best = json.loads((folder / "best_hyperparameters.txt").read_text())["values"]
    assert sorted(best) == ["embedding_size", "hidden_units", "learning_rate"]
    report = tuned_run.report
    assert report.pushed is not None
    project = next((tuned_run.root / "tuning").iterdir())
    assert (project / "results.txt").exists()
