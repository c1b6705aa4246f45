"""Tests when a trial ends early, against the median rule worked out by hand."""

from __future__ import annotations

import pytest

from tfx_tpu_trainer.components.evaluation._learning_curve import Goal
from tfx_tpu_trainer.components.tuning._trials import reason_to_stop

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
