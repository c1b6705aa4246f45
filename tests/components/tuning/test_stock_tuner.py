"""Tests TFX's stock Tuner with our tuner_fn, on the tfx wheel's transformed taxi data."""

from __future__ import annotations

import json
import logging
import shutil

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.plugins.hparams import metadata, plugin_data_pb2

from tests import tfx_testdata
from tests.bad_input import row
from tests.components.trainer.execution import Execution
from tests.components.tuning import stopping
from tests.components.tuning.tuner_execution import TunerExecution
from tfx_tpu_trainer.components.evaluation import read_eval_metrics
from tfx_tpu_trainer.components.tuning._trials import TrialResult, table_of

LOGGER = "tfx_tpu_trainer.components.tuning._tuner"


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A random search of three trials, each evaluated twice."""
    execution = TunerExecution.of(
        tmp_path_factory.mktemp("search"), oracle="random", max_trials=3, evaluations=2
    )
    execution.run()
    return execution


def _observed(trial, objective="accuracy"):
    found = trial["metrics"]["metrics"][objective]["observations"]
    return {point["step"]: point["value"][0] for point in found}


def _summaries(folder, tag):
    """The HParams plugin's summaries of a tag in a folder, itself and not those below."""
    for path in sorted(folder.glob("events.*.hparams")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if value.tag == tag:
                    content = value.metadata.plugin_data.content
                    yield plugin_data_pb2.HParamsPluginData.FromString(content)


@pytest.mark.matrix
def test_the_best_trial_is_what_the_artifacts_say(searched):
    trials = searched.trials()
    assert sorted(trials) == ["0", "1", "2"]
    assert {trial["status"] for trial in trials.values()} == {"COMPLETED"}
    scores = {name: max(_observed(trial).values()) for name, trial in trials.items()}
    by_score = sorted(scores, key=lambda name: -scores[name])
    assert [one["trial_id"] for one in searched.results] == by_score
    assert [one["score"] for one in searched.results] == [scores[name] for name in by_score]
    assert searched.best == trials[by_score[0]]["hyperparameters"]["values"]


@pytest.mark.matrix
def test_a_trial_trains_and_evaluates_as_the_trainer_does(searched, tmp_path):
    trial = searched.trials()["1"]
    assert sorted(_observed(trial)) == [6, 12]
    # Without the evaluation at step 6, which must change nothing.
    trainer = Execution.of_trainer(
        tmp_path,
        steps=12,
        params=json.dumps(trial["hyperparameters"]["values"]),
        eval_args=json.dumps({"num_steps": 4}),
        export_to_tpu=0,
        tf_random_seed=3,
    )
    trainer.run()
    metrics = read_eval_metrics(trainer.model.uri).overall
    assert metrics["accuracy"] == _observed(trial)[12]
    curve = json.loads((searched.project / "trial_1/training/learning_curve.json").read_text())
    assert metrics["loss"] == curve["points"][-1]["metrics"]["loss"]


@pytest.mark.sweep
@pytest.mark.matrix
def test_the_trainer_takes_the_best_hyperparameters(searched, tmp_path):
    trainer = Execution.of_trainer(tmp_path, steps=2)
    config = json.loads(
        (searched.folder / "best_hyperparameters" / "best_hyperparameters.txt").read_text()
    )
    trainer.add_hyperparameters(config)
    trainer.run()
    checkpoint = tf.train.latest_checkpoint(str(tmp_path / "model_run"))
    table = tf.train.load_variable(checkpoint, "payment")
    assert table.shape[1] == searched.best["width"]


@pytest.mark.matrix
def test_events_stay_and_checkpoints_go(searched):
    training = searched.project / "trial_0" / "training"
    names = sorted(path.name for path in training.iterdir())
    assert [name for name in names if "tfevents" not in name] == ["eval", "learning_curve.json"]


@pytest.mark.matrix
def test_tensorboards_hparams_plugin_has_the_space_and_each_trial(searched):
    (experiment,) = _summaries(searched.project, metadata.EXPERIMENT_TAG)
    infos = {info.name: info for info in experiment.experiment.hparam_infos}
    assert sorted(infos) == ["learning_rate", "width"]
    assert infos["learning_rate"].domain_interval.max_value == pytest.approx(0.3)
    assert [each.number_value for each in infos["width"].domain_discrete.values] == [2, 4, 8]
    (metric,) = experiment.experiment.metric_infos
    assert (metric.name.group, metric.name.tag) == ("eval", "accuracy")
    for name, trial in searched.trials().items():
        folder = searched.project / f"trial_{name}" / "training"
        (start,) = _summaries(folder, metadata.SESSION_START_INFO_TAG)
        told = {k: v.number_value for k, v in start.session_start_info.hparams.items()}
        assert told == trial["hyperparameters"]["values"]
        (end,) = _summaries(folder, metadata.SESSION_END_INFO_TAG)
        assert end.session_end_info.status == 1  # STATUS_SUCCESS
        # The metric's values are where the plugin reads them: in the group's folder below the trial's.
        tags = {
            value.tag
            for path in (folder / "eval").iterdir()
            for event in tf.compat.v1.train.summary_iterator(str(path))
            for value in event.summary.value
        }
        assert "accuracy" in tags


@pytest.mark.matrix
def test_the_table_shows_all_trials(searched):
    lines = (searched.project / "results.txt").read_text().splitlines()
    assert lines[0].split() == ["trial", "accuracy", "step", "learning_rate", "width"]
    assert [line.split()[0] for line in lines[2:]] == [one["trial_id"] for one in searched.results]


@pytest.mark.matrix
def test_the_same_search_again_takes_what_it_has_found(searched, tmp_path, caplog):
    again = TunerExecution.of(
        tmp_path,
        oracle="random",
        max_trials=3,
        evaluations=2,
        directory=str(searched.folder / "search"),
    )
    before = searched.trials()
    with caplog.at_level(logging.INFO, logger=LOGGER):
        again.run()
    assert "begins" not in caplog.text
    assert again.best == searched.best and again.results == searched.results
    assert searched.trials() == before


@pytest.mark.sweep
@pytest.mark.matrix
def test_trials_that_diverge_are_given_up_and_the_others_go_on(tmp_path, caplog):
    execution = TunerExecution.of(
        tmp_path,
        "tests.components.tuning.small_search.cliff_tuner_fn",
        steps=6,
        oracle="random",
        max_trials=6,
        evaluations=2,
    )
    with caplog.at_level(logging.WARNING, logger=LOGGER):
        execution.run()
    trials = execution.trials()
    rates = {n: trial["hyperparameters"]["values"]["rate"] for n, trial in trials.items()}
    assert sorted(rates.values()) == [0.05, 0.1, 0.2, 1e30, 1e35, 1e38]
    failed = sorted(name for name, rate in rates.items() if rate > 1)
    assert [n for n, trial in sorted(trials.items()) if trial["status"] == "FAILED"] == failed
    lines = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert len(lines) == 3 and not any("\n" in line for line in lines)
    for name, line in zip(failed, sorted(lines), strict=True):
        assert line.startswith(
            f"Trial {name} is abandoned, and the search continues: it has diverged"
        )
    assert [one["trial_id"] for one in execution.results] == sorted(
        set(rates) - set(failed), key=lambda name: min(_observed(trials[name], "loss").values())
    )
    assert execution.best["learning_rate"] < 1
    table = (execution.project / "results.txt").read_text().splitlines()
    assert [line.split()[1] for line in table[-3:]] == ["-"] * 3 and "diverged" in table[-1]


@row("tuning", "a search whose trials all diverge", "all 2 trials failed", "diverged")
@pytest.mark.matrix
def test_a_search_without_a_good_trial_has_no_best(tmp_path, refused):
    execution = TunerExecution.of(
        tmp_path,
        "tests.components.tuning.small_search.only_cliff_tuner_fn",
        steps=2,
        oracle="random",
        max_trials=2,
        evaluations=1,
    )
    with refused(ValueError):
        execution.run()
    assert not (tmp_path / "best_hyperparameters").exists()


@row(
    "tuning",
    "a search space with a key that the model never reads",
    "search_space sets 'learnig_rate', which the model never reads",
    "did you mean 'learning_rate'?",
)
@pytest.mark.matrix
def test_a_key_that_the_model_never_reads_is_refused(tmp_path, refused):
    execution = TunerExecution.of(tmp_path, "tests.components.tuning.small_search.slip_tuner_fn")
    with refused(ValueError):
        execution.run()
    # Before the first trial.
    assert not (tmp_path / "search").exists()


@pytest.mark.matrix
def test_a_key_that_is_read_for_some_values_is_fine(tmp_path):
    execution = TunerExecution.of(
        tmp_path,
        "tests.components.tuning.small_search.conditional_tuner_fn",
        steps=2,
        oracle="random",
        max_trials=1,
        evaluations=1,
    )
    execution.run()
    assert len(execution.results) == 1


@pytest.mark.matrix
def test_a_keras_model_is_searched_by_its_build_model(tmp_path):
    execution = TunerExecution.of(
        tmp_path,
        "tests.components.tuning.small_search.keras_tuner_fn",
        steps=4,
        oracle="random",
        max_trials=2,
        evaluations=2,
    )
    execution.run()
    curves = {
        trial["hyperparameters"]["values"]["learning_rate"]: list(_observed(trial, "loss").values())
        for trial in execution.trials().values()
    }
    # From the same first values, and only one of the two optimizers moves them.
    assert sorted(curves) == [0.0, 0.05]
    assert curves[0.0][0] == curves[0.0][1] != curves[0.05][0] != curves[0.05][1]


@row(
    "tuning",
    "an `objective` that metric_fn does not give",
    "objective='auc' is not among the model's metrics (accuracy, label_mean, loss, loss_by_rows)",
)
@pytest.mark.matrix
def test_an_unknown_objective_ends_the_search_at_the_first_evaluation(tmp_path, refused):
    execution = TunerExecution.of(tmp_path, steps=2, objective="auc", evaluations=1)
    with refused(ValueError):
        execution.run()
    assert list(execution.trials()) == ["00"]


@row("tuning", "`train_args` without steps", "train_args.num_steps=0", "TrainArgs(num_steps=...)")
@pytest.mark.matrix
def test_steps_must_be_given(tmp_path, refused):
    with refused(ValueError):
        TunerExecution.of(tmp_path, steps=0).run()


@row("tuning", "`tpu_trainer` without `label_key`", "label_key is not set", tfx_testdata.LABEL)
@pytest.mark.matrix
def test_the_data_is_checked_before_the_first_trial(tmp_path, refused):
    execution = TunerExecution.of(tmp_path)
    del execution.trainer["label_key"]
    with refused(ValueError):
        execution.run()


@row("tuning", "a search whose files are damaged", "can't be resumed", "remove the folder")
@pytest.mark.matrix
def test_a_damaged_search_is_named(searched, tmp_path, refused):
    shutil.copytree(searched.folder / "search", tmp_path / "search")
    again = TunerExecution.of(tmp_path, oracle="random", max_trials=3, evaluations=2)
    path = again.project / "oracle.json"
    path.write_text(path.read_text()[:100])
    with refused(ValueError):
        again.run()


def _result(number, score, *, status="COMPLETED", message="", **values):
    return TrialResult(
        trial_id=number, values=values, status=status, score=score, step=30, message=message
    )


RESULTS = [
    _result("02", 0.9, rate=0.0123456, optimizer="adam"),
    _result("00", 0.8, rate=0.1, optimizer="momentum", momentum=0.5),
    _result("01", None, status="FAILED", message="it has diverged", rate=30.0, optimizer="adam"),
    _result("03", None, status="RUNNING", rate=0.2, optimizer="adam"),
]


def test_the_table_has_a_row_for_each_trial_and_a_reason_for_each_that_failed():
    lines = table_of(RESULTS, objective="auc").splitlines()
    assert [line.split() for line in (lines[0], *lines[2:])] == [
        ["trial", "auc", "step", "rate", "optimizer", "momentum"],
        ["02", "0.9", "30", "0.01235", "adam", "-"],
        ["00", "0.8", "30", "0.1", "momentum", "0.5"],
        ["01", "-", "30", "30", "adam", "-", "it", "has", "diverged"],
        ["03", "-", "30", "0.2", "adam", "-", "running"],
    ]


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
@pytest.mark.matrix
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


def _accuracies(trial):
    found = trial["metrics"]["metrics"]["accuracy"]["observations"]
    return {point["step"]: point["value"][0] for point in found}


@pytest.mark.matrix
def test_hyperband_trains_the_better_half_on(halved):
    trials = list(halved.trials().values())
    assert [sorted(_accuracies(trial)) for trial in trials] == [[3]] * 4 + [[6]] * 2 + [[9, 12]]
    sources = [trial["hyperparameters"]["values"].get("tuner/trial_id") for trial in trials]
    by_score = sorted(trials[:4], key=lambda trial: -trial["score"])
    assert sources[:4] == [None] * 4
    assert set(sources[4:6]) == {trial["trial_id"] for trial in by_score[:2]}
    assert sources[6] == max(trials[4:6], key=lambda trial: trial["score"])["trial_id"]


@pytest.mark.matrix
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
    assert read_eval_metrics(trainer.model.uri).overall["accuracy"] == _accuracies(last)[12]


@pytest.mark.matrix
def test_the_best_hyperparameters_are_the_models_alone(halved):
    assert sorted(halved.best) == ["learning_rate", "width"]


@pytest.mark.matrix
def test_no_checkpoints_stay_when_the_search_has_ended(halved):
    assert list(halved.project.glob("trial_*/training/model.ckpt*")) == []
    assert len(list(halved.project.glob("trial_*/training/learning_curve.json"))) == 7
