"""Searches that were stopped, and trials that go on with those of others: to the last bit what they would have been."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from tests.components.trainer.execution import Execution
from tests.components.tuning import stopping
from tests.components.tuning.tuner_execution import TunerExecution
from tfx_tpu_trainer.components.evaluation import read_eval_metrics

pytestmark = pytest.mark.matrix


def _search(folder):
    return TunerExecution.of(
        folder,
        "tests.components.tuning.small_search.stopping_tuner_fn",
        oracle="random",
        max_trials=2,
        evaluations=2,
        keep_checkpoints=True,
        trainer={"save_checkpoints_steps": 2},
    )


def _variables(project, trial):
    path = tf.train.latest_checkpoint(str(project / f"trial_{trial}" / "training"))
    reader = tf.train.load_checkpoint(path)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@pytest.mark.sweep
def test_a_search_that_was_stopped_goes_on_in_the_middle_of_its_trial(tmp_path):
    whole, stopped = _search(tmp_path / "whole"), _search(tmp_path / "stopped")
    for execution in (whole, stopped):
        execution.folder.mkdir()
    whole.run()
    # In the second part of the second trial.
    stopping.AT.update(sessions=4, step=9)
    try:
        with pytest.raises(KeyboardInterrupt):
            stopped.run()
    finally:
        stopping.AT.clear()
    before = stopped.trials()
    assert [trial["status"] for trial in before.values()] == ["COMPLETED", "RUNNING"]
    latest = tf.train.latest_checkpoint(str(stopped.project / "trial_1" / "training"))
    assert latest.rpartition("-")[2] in ("8", "10")
    stopped.run()
    assert stopped.results == whole.results and stopped.best == whole.best
    for name, trial in whole.trials().items():
        again = stopped.trials()[name]
        assert again["metrics"] == trial["metrics"] and again["status"] == trial["status"]
        variables = _variables(stopped.project, name)
        for key, value in _variables(whole.project, name).items():
            np.testing.assert_array_equal(variables[key], value, err_msg=key)


@pytest.fixture(scope="module")
def halved(tmp_path_factory):
    """The first bracket of Hyperband: four trials for a quarter of the steps, two of them for half, one for all."""
    execution = TunerExecution.of(
        tmp_path_factory.mktemp("hyperband"),
        oracle="hyperband",
        factor=2,
        evaluations=4,
        max_trials=7,
    )
    execution.run()
    return execution


def _observed(trial):
    found = trial["metrics"]["metrics"]["accuracy"]["observations"]
    return {point["step"]: point["value"][0] for point in found}


def test_hyperband_trains_the_better_half_on(halved):
    trials = list(halved.trials().values())
    assert [sorted(_observed(trial)) for trial in trials] == [[3]] * 4 + [[6]] * 2 + [[9, 12]]
    sources = [trial["hyperparameters"]["values"].get("tuner/trial_id") for trial in trials]
    by_score = sorted(trials[:4], key=lambda trial: -trial["score"])
    assert sources[:4] == [None] * 4
    assert set(sources[4:6]) == {trial["trial_id"] for trial in by_score[:2]}
    assert sources[6] == max(trials[4:6], key=lambda trial: trial["score"])["trial_id"]


def test_a_trial_that_goes_on_ends_as_one_training(halved, tmp_path):
    last = list(halved.trials().values())[-1]
    values = last["hyperparameters"]["values"]
    trainer = Execution.of_trainer(
        tmp_path,
        steps=12,
        params=json.dumps({name: values[name] for name in ("learning_rate", "width")}),
        eval_args=json.dumps({"num_steps": 4}),
        export_to_tpu=0,
        tf_random_seed=3,
    )
    trainer.run()
    assert read_eval_metrics(trainer.model.uri).overall["accuracy"] == _observed(last)[12]


def test_the_best_hyperparameters_are_the_models_alone(halved):
    assert sorted(halved.best) == ["learning_rate", "width"]


def test_no_checkpoints_stay_when_the_search_has_ended(halved):
    assert list(halved.project.glob("trial_*/training/model.ckpt*")) == []
    assert len(list(halved.project.glob("trial_*/training/learning_curve.json"))) == 7
