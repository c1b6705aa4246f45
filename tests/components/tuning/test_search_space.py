"""Tests search spaces: the params made from a trial's values, and what is rejected."""

from __future__ import annotations

import copy
import dataclasses
import json

import keras_tuner
import pytest

from tests.bad_input import case
from tfx_tpu_trainer.components.tuning._search_space import (
    ParamReads,
    SearchSpace,
    UnusedParamError,
)


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


PARAMS = {"rate": 0.1, "width": 4, "batch_size": 8}


@dataclasses.dataclass
class _Config:
    rate: float
    width: int
    batch_size: int


def _seen(read):
    reads = ParamReads()

    def model_fn(features, params):
        return read(params)

    reads.watched(model_fn)(features=1, params=dict(PARAMS))
    return reads.seen


@pytest.mark.parametrize(
    "read",
    [
        lambda params: params["rate"],
        lambda params: params.get("rate"),
        lambda params: params.get("rate", 1.0),
        lambda params: params.pop("rate"),
        lambda params: params.setdefault("rate", 1.0),
    ],
)
def test_one_that_is_looked_up_is_read(read):
    assert _seen(read) == {"rate"}


@pytest.mark.parametrize(
    "read",
    [
        lambda params: _Config(**params),
        lambda params: {**params},
        lambda params: dict(params),
        lambda params: params.copy(),
        lambda params: copy.copy(params),
        lambda params: copy.deepcopy(params),
        lambda params: list(params.items()),
        lambda params: list(params.values()),
        lambda params: json.dumps(params),
        lambda params: [params[name] for name in params],
        lambda params: params | {"more": 1},
        lambda params: {"more": 1} | params,
    ],
)
def test_who_takes_all_of_them_has_read_all(read):
    assert _seen(read) == set(PARAMS)


@pytest.mark.parametrize(
    "look", [lambda params: "rate" in params, len, list, lambda params: params.keys()]
)
def test_a_look_at_names_reads_nothing(look):
    assert _seen(look) == set()


def test_the_function_gets_a_dict_with_the_same_values():
    got = []
    ParamReads().watched(lambda features, params: got.append(params))(features=1, params=PARAMS)
    assert isinstance(got[0], dict)
    assert got[0] == PARAMS


def test_the_message_names_the_param_that_may_have_been_meant():
    reads = ParamReads()
    reads.seen = {"learning_rate", "batch_size"}
    with pytest.raises(UnusedParamError) as raised:
        reads.check(["learnig_rate"])
    message = str(raised.value)
    assert "'learnig_rate'" in message and "did you mean 'learning_rate'?" in message
    assert "batch_size" not in message and "\n" not in message
