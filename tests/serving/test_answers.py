"""How answers are compared with predictions; the numbers by formula, no model needed."""

from __future__ import annotations

import numpy as np
import pytest

from tfx_tpu_trainer.serving._answers import compare

VALUES = np.array([[1.0, -40.0], [0.001, 20.0]], np.float32)


def _compare(answer, expected, tolerance=1e-6):
    return compare({"serving_default": {"y": np.asarray(answer)}}, {"y": expected}, tolerance)


def test_equal_values_pass():
    finding = _compare(VALUES, VALUES)
    assert finding == (
        "passed",
        "serving_default['y']: 2 rows, largest difference 0 of the largest value",
    )


@pytest.mark.parametrize("tolerance", [1e-6, 1e-3])
@pytest.mark.parametrize(("times", "outcome"), [(0.5, "passed"), (2.0, "failed")])
def test_the_tolerance_is_a_part_of_the_largest_value(tolerance, times, outcome):
    answer = VALUES.astype(np.float64)
    answer[1, 0] += times * tolerance * 40.0
    assert _compare(answer, VALUES.astype(np.float64), tolerance).outcome == outcome


def test_the_difference_is_told():
    answer = VALUES.copy()
    answer[0, 0] += 4.0
    assert _compare(answer, VALUES).detail == (
        "serving_default['y'] differs by 0.1 of its largest value, but only 1e-06 is allowed, from "
        "what the estimator predicts"
    )


def test_nan_and_infinity_equal_themselves_only():
    odd = np.array([np.nan, np.inf, -np.inf, 1.0])
    assert _compare(odd, odd).outcome == "passed"
    for place in range(3):
        answer = odd.copy()
        answer[place] = 1.0
        assert _compare(answer, odd).outcome == "failed"
        assert _compare(odd, answer).outcome == "failed"


def test_zeros_are_compared_absolutely():
    assert _compare(np.full(3, 5e-7), np.zeros(3)).outcome == "passed"
    assert _compare(np.full(3, 2e-6), np.zeros(3)).outcome == "failed"


@pytest.mark.parametrize(
    ("answer", "expected", "outcome"),
    [
        (np.array([b"a", b"b"], object), np.array([b"a", b"b"]), "passed"),
        (np.array([b"a", b"b"], object), np.array(["a", "b"], object), "passed"),
        (np.array([b"a", b"b"], object), np.array([b"a", b"c"], object), "failed"),
        (np.array([True, False]), np.array([True, False]), "passed"),
        (np.array([True, False]), np.array([True, True]), "failed"),
        (np.array([3, 2**40]), np.array([3, 2**40]), "passed"),
        (np.array([3, 4]), np.array([3, 5]), "failed"),
    ],
)
def test_texts_booleans_and_integers_are_the_same_or_not(answer, expected, outcome):
    assert _compare(answer, expected).outcome == outcome


@pytest.mark.parametrize("expected", [VALUES[:, :1], VALUES.astype(np.float64)])
def test_another_shape_or_type_is_told(expected):
    finding = _compare(VALUES, expected)
    assert finding.outcome == "failed"
    assert finding.detail.startswith(
        f"serving_default['y'] is float32[2, 2] such as [1.0] instead of {expected.dtype}"
        f"{list(expected.shape)} such as [1.0], from"
    )


def test_every_signature_is_compared():
    answers = {"a": {"y": VALUES, "only here": VALUES}, "b": {"y": VALUES + 1}}
    finding = compare(answers, {"y": VALUES}, 1e-6)
    assert finding.outcome == "failed" and finding.detail.startswith("b['y'] differs")


def test_outputs_without_a_prediction_of_their_name_are_not_judged():
    finding = compare({"a": {"y": VALUES}}, {"z": VALUES}, 1e-6)
    assert finding == ("not run", "it answers a, but no output has the name of a prediction (z)")
