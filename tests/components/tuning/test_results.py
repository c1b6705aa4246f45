"""The table of a search, and the axes of its picture."""

from __future__ import annotations

import math

import keras_tuner
import pytest

from tfx_tpu_trainer.components.tuning._parallel_coordinates import axis_of, draw
from tfx_tpu_trainer.components.tuning._results import TrialResult, table_of


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


def _space():
    hp = keras_tuner.HyperParameters()
    hp.Float("rate", 1e-3, 1e1, sampling="log")
    hp.Choice("optimizer", ["adam", "momentum", "sgd"])
    with hp.conditional_scope("optimizer", ["momentum"]):
        hp.Float("momentum", 0.0, 1.0)
    return hp


def test_the_table_has_a_row_for_each_trial_and_a_reason_for_each_that_failed():
    lines = table_of(RESULTS, objective="auc").splitlines()
    assert [line.split() for line in (lines[0], *lines[2:])] == [
        ["trial", "auc", "step", "rate", "optimizer", "momentum"],
        ["02", "0.9", "30", "0.01235", "adam", "-"],
        ["00", "0.8", "30", "0.1", "momentum", "0.5"],
        ["01", "-", "30", "30", "adam", "-", "it", "has", "diverged"],
        ["03", "-", "30", "0.2", "adam", "-", "running"],
    ]


def test_axes_place_values_as_they_are_drawn():
    rate, optimizer, momentum = map(axis_of, _space().space)
    # Halfway between 1e-3 and 1e1, where the logarithm is halfway.
    assert rate[0](0.1) == pytest.approx(0.5)
    assert [rate[0](1e-3), rate[0](1e1)] == pytest.approx([0, 1])
    assert [label for _, label in rate[1]] == ["0.001", "0.01", "0.1", "1", "10"]
    assert [optimizer[0](name) for name in ("adam", "momentum", "sgd")] == [0, 0.5, 1]
    assert math.isnan(optimizer[0]("lion"))
    assert momentum[0](0.25) == pytest.approx(0.25)


def test_a_search_without_a_score_has_no_picture():
    assert draw(RESULTS[2:], _space(), objective="auc", best_is_high=True) is None
    picture = draw(RESULTS, _space(), objective="auc", best_is_high=True)
    assert picture is not None and picture.startswith(b"\x89PNG")
