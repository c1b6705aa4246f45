"""Which params a function reads, however it does."""

from __future__ import annotations

import copy
import dataclasses
import json

import pytest

from tfx_tpu_trainer.components.tuning._param_reads import ParamReads, explain_unread

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
    message = explain_unread(
        ["learnig_rate"], ["learning_rate", "batch_size"], of_search=["learnig_rate"]
    )
    assert "'learnig_rate'" in message and "did you mean 'learning_rate'?" in message
    assert "batch_size" not in message and "\n" not in message
