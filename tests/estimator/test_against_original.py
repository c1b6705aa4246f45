"""Ours against what `original_facts.py` recorded of the original."""

import itertools
import json
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest

from tests.estimator import exchanged_models, linear_model, original_facts
from tests.estimator.original import facts_of
from tests.estimator.original import original_python as original_python
from tests.estimator.record_original_exchange import CHECKPOINT, CHECKPOINT_OF, RECORDING, STEPS
from tfx_tpu_trainer import estimator
from tfx_tpu_trainer.estimator import tpu

ORIGINAL = json.loads(pathlib.Path(__file__).with_name("original_runs.json").read_text("utf-8"))
RUN_CONFIGS = {"estimator": estimator.RunConfig, "tpu": tpu.RunConfig}
EQUAL = (
    "steps_with_loss",
    "tags",
    "eval_steps",
    "metric_types",
    "checkpoint_steps",
    "shapes",
    "files",
)
CLOSE = ("losses", "metrics", "predictions")


@pytest.fixture(scope="module", params=sorted(linear_model.OPTIMIZERS))
def runs(request, tmp_path_factory):
    """The original's facts and ours, of one optimizer."""
    folder = str(tmp_path_factory.mktemp(request.param))
    return ORIGINAL["runs"][request.param], original_facts.run_facts(tpu, request.param, folder)


@pytest.mark.parametrize("fact", EQUAL)
def test_names_shapes_and_steps_are_the_originals(runs, fact):
    original, ours = runs
    assert ours[fact] == original[fact]


def test_an_evaluation_has_the_originals_tags_and_the_loss_by_rows(runs):
    original, ours = runs
    assert ours["eval_tags"] == sorted([*original["eval_tags"], "loss_by_rows"])


@pytest.mark.behaviour(391)
def test_on_the_host_the_speed_is_reported_as_often_as_asked_and_not_by_loops(runs):
    # Every 3 steps as log_step_count_steps says; the original divides by iterations_per_loop, which is 2 here.
    original, ours = runs
    assert original["steps_with_examples_per_second"] == [3, 5, 7, 9]
    assert ours["steps_with_examples_per_second"] == [4, 7, 10]


@pytest.mark.parametrize("fact", CLOSE)
def test_numbers_are_the_originals(runs, fact):
    original, ours = runs
    assert ours[fact] == pytest.approx(original[fact], rel=2e-6, abs=1e-7)


def test_variables_and_slots_are_the_originals(runs):
    original, ours = runs
    assert list(ours["values"]) == list(original["values"])
    for name, value in original["values"].items():
        assert ours["values"][name] == pytest.approx(value, rel=2e-6, abs=1e-7), name


@pytest.mark.parametrize("kind", sorted(RUN_CONFIGS))
@pytest.mark.parametrize("case", sorted(original_facts.TF_CONFIGS))
@pytest.mark.behaviour(*range(46, 70))
def test_tf_config_is_read_as_by_the_original(monkeypatch, kind, case):
    monkeypatch.setenv("TF_CONFIG", json.dumps(original_facts.TF_CONFIGS[case]))
    ours = json.loads(json.dumps(original_facts.place_facts(RUN_CONFIGS[kind])))
    assert ours == ORIGINAL["places"][case][kind]


RUNS = json.loads(RECORDING.read_text())["runs"]
ALL = list(itertools.product(exchanged_models.MODELS, sorted(exchanged_models.OPTIMIZERS)))

QUICK = [("embedding_and_loop", "adam"), ("embedding_and_loop", "ftrl"), ("mlp", "momentum")]

every_model_and_optimizer = pytest.mark.parametrize(
    ("model", "optimizer"),
    [pytest.param(*each, marks=() if each in QUICK else pytest.mark.sweep) for each in ALL],
)


def assert_alike(ours: dict[str, Any], original: dict[str, Any]) -> None:
    """The same losses step by step, the same variables and slots, and the same values."""
    np.testing.assert_allclose(ours["losses"], original["losses"], rtol=5e-6, atol=1e-6)
    assert list(ours["values"]) == list(original["values"])
    for name, value in original["values"].items():
        np.testing.assert_allclose(ours["values"][name], value, rtol=5e-6, atol=2e-6, err_msg=name)


@pytest.mark.matrix
@every_model_and_optimizer
def test_losses_variables_and_slots_are_the_originals(tmp_path, model, optimizer):
    original = RUNS[f"{model} {optimizer}"]
    for part in ("first", "second"):
        ours = exchanged_models.trained_facts(tpu, model, optimizer, str(tmp_path), STEPS)
        assert_alike(ours, original[part])


def test_a_checkpoint_of_the_original_is_trained_on_as_by_the_original(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(CHECKPOINT, folder)
    restored = exchanged_models.estimator(tpu, *CHECKPOINT_OF, str(folder))
    assert restored.get_variable_value("global_step") == STEPS
    assert "embedding/Adam_1" in restored.get_variable_names()
    ours = exchanged_models.trained_facts(tpu, *CHECKPOINT_OF, str(folder), STEPS)
    assert_alike(ours, RUNS[" ".join(CHECKPOINT_OF)]["second"])


@pytest.mark.sweep
@every_model_and_optimizer
def test_each_trains_on_from_the_others_checkpoint(tmp_path, original_python, model, optimizer):
    def ours(folder: Any) -> dict[str, Any]:
        return exchanged_models.trained_facts(tpu, model, optimizer, str(folder), STEPS)

    def original(folder: Any) -> dict[str, Any]:
        return facts_of(original_python, exchanged_models, model, optimizer, folder, STEPS)

    first = {"ours": ours(tmp_path / "ours"), "original": original(tmp_path / "original")}
    assert_alike(first["ours"], first["original"])
    shutil.copytree(tmp_path / "ours", tmp_path / "of_ours")
    shutil.copytree(tmp_path / "original", tmp_path / "of_original")

    from_ours = original(tmp_path / "of_ours")
    assert_alike(from_ours, ours(tmp_path / "ours"))
    from_original = ours(tmp_path / "of_original")
    assert_alike(from_original, original(tmp_path / "original"))
    assert_alike(from_ours, from_original)
