"""Ours against what `record_original.py` recorded of the original."""

from __future__ import annotations

import json
import pathlib

import pytest

from tests.estimator import linear_model, original_facts
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
