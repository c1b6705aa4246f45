"""Search spaces: what a trial's values become, and what is refused."""

from __future__ import annotations

import keras_tuner
import pytest

from tests.bad_input import case
from tfx_tpu_trainer.components.tuning._search_space import SearchSpace


def _by_function(hp):
    layers = hp.Int("layers", 1, 3, default=2)
    return {
        "rate": hp.Float("rate", 1e-4, 1e-1, sampling="log", default=1e-2),
        "hidden_units": [64 // 2**layer for layer in range(layers)],
    }


def _conditional(hp):
    hp.Choice("optimizer", ["adam", "momentum"])
    with hp.conditional_scope("optimizer", ["momentum"]):
        hp.Float("momentum", 0.5, 0.99)


def _trial(space, **values):
    hyperparameters = space.hyperparameters.copy()
    hyperparameters.values.update(values)
    return hyperparameters


def test_the_values_are_the_params_where_nothing_else_is_returned():
    hp = keras_tuner.HyperParameters()
    hp.Choice("width", [2, 4], default=4)
    hp.Boolean("bias", default=True)
    space = SearchSpace.of(hp)
    assert space.default_params == {"width": 4, "bias": True}
    assert space.params_of(_trial(space, width=2)) == {"width": 2, "bias": True}


def test_what_a_function_returns_are_the_params():
    space = SearchSpace.of(_by_function)
    assert space.default_params == {"rate": 1e-2, "hidden_units": [64, 32]}
    assert space.params_of(_trial(space, layers=3, rate=0.05)) == {
        "rate": 0.05,
        "hidden_units": [64, 32, 16],
    }


def test_what_hyperband_says_to_its_tuner_is_no_param():
    space = SearchSpace.of(_conditional)
    trial = _trial(space, **{"tuner/epochs": 3, "tuner/trial_id": "0001"})
    assert space.params_of(trial) == {"optimizer": "adam"}


def test_variations_reach_what_depends_on_a_choice():
    space = SearchSpace.of(_conditional)
    assert space.default_params == {"optimizer": "adam"}
    (varied,) = space.variations()
    assert varied["optimizer"] == "momentum" and 0.5 <= varied["momentum"] <= 0.99


def test_the_space_that_was_given_stays_as_it_is():
    hp = keras_tuner.HyperParameters()
    hp.Choice("width", [2, 4])
    SearchSpace.of(hp).hyperparameters.values["width"] = 4
    assert hp.values == {"width": 2}


@pytest.mark.parametrize(
    "given",
    [
        case(
            "tuning",
            "`search_space={'lr': 0.1}`",
            "search_space={'lr': 0.1} is not a search space",
            values={"lr": 0.1},
        ),
        case(
            "tuning",
            "a `search_space` without a hyperparameter",
            "search_space declares nothing to search",
            values=lambda hp: {"lr": 0.1},
        ),
        case(
            "tuning",
            "a `search_space` that fails",
            "search_space fails with the values {'lr': 0.5}: ZeroDivisionError",
            values=lambda hp: hp.Fixed("lr", 0.5) / 0,
        ),
        case(
            "tuning",
            "a `search_space` that returns a list",
            "search_space returned [1]",
            "a dict of params",
            values=lambda hp: [hp.Choice("width", [1])],
        ),
        case(
            "tuning",
            "a `search_space` for `batch_size`",
            "search_space has 'batch_size', which the engine sets itself",
            values=lambda hp: {"batch_size": hp.Choice("rows", [32, 64])},
        ),
        case(
            "tuning",
            "a `search_space` that gives a function as a param",
            "search_space returns 'activation'=",
            "best_hyperparameters",
            values=lambda hp: {"activation": max, "width": hp.Choice("width", [1])},
        ),
        case(
            "tuning",
            "a hyperparameter named `tuner/epochs`",
            "'tuner/epochs'",
            "are Hyperband's",
            values=lambda hp: {"epochs": hp.Int("tuner/epochs", 1, 3)},
        ),
    ],
)
def test_what_is_no_search_space_is_refused(given, refused):
    with refused(ValueError):
        SearchSpace.of(given)
