"""Tests a search's settings (defaults, and what is rejected), and when a trial ends early."""

from __future__ import annotations

import keras_tuner
import pytest

from tests.bad_input import case, row
from tfx_tpu_trainer.components.evaluation._learning_curve import Goal
from tfx_tpu_trainer.components.tuning import make_tuner_fn
from tfx_tpu_trainer.components.tuning._trials import reason_to_stop
from tfx_tpu_trainer.components.tuning._tune_job import TuneSettings
from tfx_tpu_trainer.components.tuning._tuner import make_oracle

SOURCE = "custom_config['tuning']"


@row(
    "tuning",
    "`make_tuner_fn(max_trails=3)`",
    "make_tuner_fn: unknown setting 'max_trails'; did you mean 'max_trials'?",
)
def test_a_slip_in_the_module_is_told_when_it_is_imported(refused):
    with refused(ValueError):
        make_tuner_fn(model_fn=print, search_space=_space(), objective="auc", max_trails=3)


def _settings(**values):
    return TuneSettings.parse({"objective": "auc", **values}, source=SOURCE)


def _space():
    hp = keras_tuner.HyperParameters()
    hp.Float("rate", 1e-4, 1e-1, sampling="log")
    return hp


@pytest.mark.parametrize(
    ("values", "trials", "evaluations", "compares"),
    [
        ({}, 10, 4, True),
        ({"oracle": "random", "max_trials": 3}, 3, 4, True),
        ({"oracle": "hyperband"}, None, 9, False),
        ({"oracle": "hyperband", "evaluations": 4, "stop_poor": True}, None, 4, True),
        ({"stop_poor": False}, 10, 4, False),
    ],
)
def test_defaults_follow_the_oracle(values, trials, evaluations, compares):
    settings = _settings(**values)
    assert settings.trial_limit == trials
    assert settings.evaluations_of_a_trial == evaluations
    assert settings.stops_poor_trials is compares


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("random", keras_tuner.oracles.RandomSearchOracle),
        ("bayesian", keras_tuner.oracles.BayesianOptimizationOracle),
        ("hyperband", keras_tuner.oracles.HyperbandOracle),
    ],
)
def test_oracles_are_those_of_keras_tuner(name, kind):
    oracle = make_oracle(_settings(oracle=name, direction="min"), _space())
    assert type(oracle) is kind
    assert oracle.objective == keras_tuner.Objective("auc", "min")
    # TFX requests the best `max_trials` trials.
    assert oracle.get_best_trials(oracle.max_trials) == []


def test_a_bayesian_search_learns_from_its_first_trials():
    # keras-tuner's own default, three for each hyperparameter, leaves ten trials of four all random.
    assert make_oracle(_settings(max_trials=12), _space()).num_initial_points == 4
    assert make_oracle(_settings(max_trials=3), _space()).num_initial_points == 2
    assert make_oracle(_settings(num_initial_points=7), _space()).num_initial_points == 7


def test_the_same_search_draws_the_same_trials(tmp_path):
    drawn = []
    for seed in (1, 1, 2):
        oracle = make_oracle(_settings(oracle="random", seed=seed), _space())
        folder = tmp_path / str(len(drawn))
        keras_tuner.engine.base_tuner.BaseTuner(oracle, directory=str(folder))
        drawn.append(oracle.create_trial("tuner0").hyperparameters.values["rate"])
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    "values",
    [
        case("tuning", "no `objective`", SOURCE, "objective is missing", values={}),
        case(
            "tuning",
            "`objective` and a setting `max_trails`",
            "unknown setting 'max_trails'; did you mean 'max_trials'?",
            values={"objective": "auc", "max_trails": 3},
        ),
        case(
            "tuning",
            "`oracle='grid'`",
            "oracle='grid' is not valid; give 'random', 'bayesian' or 'hyperband'",
            values={"objective": "auc", "oracle": "grid"},
        ),
        case(
            "tuning",
            "`max_trials=0`",
            "max_trials=0 is not valid; give an integer above 0",
            values={"objective": "auc", "max_trials": 0},
        ),
        case(
            "tuning",
            "`oracle='hyperband'` with fewer `evaluations` than `factor`",
            "evaluations=2 with oracle='hyperband' leaves no trial to train further; give at least factor=3",
            values={"objective": "auc", "oracle": "hyperband", "evaluations": 2},
        ),
        case(
            "tuning",
            "`oracle='hyperband'` with `factor=1`",
            "factor=1 is not valid; give 2 or more",
            values={"objective": "auc", "oracle": "hyperband", "factor": 1},
        ),
        case("tuning", "`tuning` that is a list", "['auc'] is not valid", values=["auc"]),
    ],
)
def test_settings_that_do_not_fit_are_refused(values, refused):
    with refused(ValueError):
        TuneSettings.parse(values, source=SOURCE)


HIGH, LOW = Goal(metric="auc", mode="max"), Goal(metric="loss", mode="min")
# Averages up to step 200: 0.7, 0.8 and 0.6; the median is 0.7.
OTHERS = [{100: 0.6, 200: 0.8, 300: 0.9}, {100: 0.7, 200: 0.9}, {100: 0.5, 200: 0.7, 300: 0.1}]


@pytest.mark.parametrize(
    ("curve", "stops"),
    [
        ({100: 0.5, 200: 0.69}, True),
        ({100: 0.5, 200: 0.7}, False),
        # Its best value counts, and not its last.
        ({100: 0.71, 200: 0.1}, False),
        ({100: 0.1, 200: 0.2}, True),
    ],
)
def test_worse_than_the_median_of_the_averages_is_poor(curve, stops):
    reason = reason_to_stop(curve, OTHERS, goal=HIGH, least_others=3)
    assert bool(reason) is stops
    if stops:
        assert "worse than the median of 3 others, 0.7" in reason and "step 200" in reason


def test_where_low_is_good_the_rule_is_turned_over():
    assert reason_to_stop({200: 0.71}, OTHERS, goal=LOW, least_others=3)
    assert not reason_to_stop({200: 0.69}, OTHERS, goal=LOW, least_others=3)


def test_only_others_that_have_come_as_far_are_compared_with():
    # At step 300 two are left, with averages of 0.766 and 0.433.
    assert not reason_to_stop({300: 0.1}, OTHERS, goal=HIGH, least_others=3)
    assert reason_to_stop({300: 0.1}, OTHERS, goal=HIGH, least_others=2)
    assert not reason_to_stop({200: 0.1}, [], goal=HIGH, least_others=1)


def test_nobody_is_compared_with_where_that_is_off():
    assert not reason_to_stop({200: 0.0}, OTHERS, goal=HIGH, least_others=None)


@pytest.mark.parametrize(
    ("values", "stops"),
    [
        ((0.5, 0.6, 0.6), False),
        ((0.6, 0.6, 0.6), True),
        ((0.6, 0.5, 0.4), True),
        ((0.6, 0.5), False),
    ],
)
def test_patience_counts_evaluations_after_the_best(values, stops):
    goal = Goal(metric="auc", mode="max", patience=2)
    curve = {100 * (index + 1): value for index, value in enumerate(values)}
    reason = reason_to_stop(curve, [], goal=goal, least_others=None)
    assert bool(reason) is stops
    if stops:
        assert reason == "auc has not improved in 2 evaluations"
