from __future__ import annotations

import math

import pytest

from tests.bad_input import case, row
from tfx_tpu_trainer.components.evaluation import EvalMetrics
from tfx_tpu_trainer.components.evaluation._learning_curve import (
    Goal,
    LearningCurve,
    Point,
    read_learning_curve,
    take_up_learning_curve,
    write_learning_curve,
)


def _point(step, accuracy):
    metrics = EvalMetrics({"accuracy": accuracy, "loss": 0.1}, global_step=step, num_examples=3)
    return Point(metrics=metrics, time=1000.0 + step)


def _curve(values, **goal):
    """The curve of a training with an evaluation at steps 1, 2, ..."""
    curve = LearningCurve(goal=Goal(metric="accuracy", **goal))
    for step, value in enumerate(values, start=1):
        point = _point(step, value)
        if curve.would_be_best(point.metrics):
            curve = curve.with_best(point, f"best/{step}")
        curve = curve.with_point(point)
    return curve


@pytest.mark.parametrize(
    ("mode", "values", "best", "since"),
    [
        ("max", [0.1, 0.3, 0.2, 0.3], 2, 2),
        ("min", [0.3, 0.1, 0.2, 0.1], 2, 2),
        ("max", [math.nan, 0.1, math.nan], 2, 1),
        ("min", [math.nan, math.inf], 2, 0),
        ("max", [math.nan, math.nan], None, 2),
    ],
)
def test_best(mode, values, best, since):
    curve = _curve(values, mode=mode)
    assert (curve.best and curve.best.step) == best
    assert curve.best_checkpoint == (best and f"best/{best}")
    assert curve.evaluations_since_best == since


def test_patience():
    assert not _curve([0.3, 0.2], patience=2).stops
    assert _curve([0.3, 0.2, 0.3], patience=2).stops
    assert _curve([math.nan, math.nan], patience=2).stops
    assert not _curve([0.3, 0.2, 0.4], patience=2).stops
    assert not _curve([0.3] * 9).stops
    assert not LearningCurve(points=(_point(1, 0.1),)).stops


def test_there_and_back(tmp_path):
    curve = _curve([0.1 + 0.2, math.nan, -math.inf], mode="min", patience=4)
    write_learning_curve(str(tmp_path), curve)
    read = read_learning_curve(str(tmp_path))
    assert repr(read) == repr(curve)
    without_goal = LearningCurve(points=(_point(1, 0.5),))
    write_learning_curve(str(tmp_path), without_goal)
    assert read_learning_curve(str(tmp_path)) == without_goal
    assert read_learning_curve(str(tmp_path / "nowhere")) is None


@pytest.mark.parametrize(
    "content",
    [
        case(
            "eval_metrics",
            f"a `learning_curve.json` {given}",
            "learning_curve.json can't be read: ",
            says,
            values=content,
        )
        for given, content, says in (
            ("with nothing but a version", b'{"version": 1}', "it has no 'metric'"),
            ("with bytes that are not text", b'{"\xff": 1}', "it is not valid JSON, 'utf-8' codec"),
            ("nested 100,000 deep", b"[" * 100_000, "it is JSON nested too deeply"),
            ("of a newer version", b'{"version": 99}', "upgrade tfx_tpu_trainer"),
        )
    ],
)
def test_a_broken_file_is_named_and_set_aside(tmp_path, content, refused, caplog):
    (tmp_path / "learning_curve.json").write_bytes(content)
    with refused(ValueError):
        read_learning_curve(str(tmp_path))
    assert take_up_learning_curve(str(tmp_path)) is None
    refused.log(caplog.text)
    (aside,) = tmp_path.iterdir()
    assert aside.name.startswith("learning_curve.json.aside-") and aside.read_bytes() == content


def test_a_step_that_is_evaluated_again_keeps_the_best():
    curve = _curve([0.1, 0.9])
    again = _point(2, 0.5)
    assert not curve.would_be_best(again.metrics)
    curve = curve.with_point(again)
    assert [point.metrics.overall["accuracy"] for point in curve.points] == [0.1, 0.5]
    assert not curve.would_be_best(_point(3, 0.8).metrics)


def test_another_goal_forgets_the_best():
    curve = _curve([0.1, 0.9])
    assert curve.with_goal(Goal(metric="accuracy", patience=3)).best == curve.best
    for goal in (Goal(metric="accuracy", mode="min"), Goal(metric="loss"), None):
        changed = curve.with_goal(goal)
        assert (changed.best, changed.best_checkpoint) == (None, None)
        assert changed.points == curve.points


@pytest.mark.parametrize(
    "goal",
    [
        case(
            "eval_metrics",
            "a goal of `mode='up'`",
            "mode='up' is not valid",
            values={"metric": "accuracy", "mode": "up"},
        ),
        case(
            "eval_metrics",
            "a goal of `patience=0`",
            "patience=0 is not valid",
            values={"metric": "accuracy", "patience": 0},
        ),
    ],
)
def test_a_goal_that_nothing_reaches_is_refused(goal, refused):
    with refused(ValueError):
        Goal(**goal)


@row(
    "eval_metrics",
    "a goal that the evaluation does not measure",
    "best_metric='acc' is not among the model's metrics (accuracy, loss): return it from metric_fn",
)
def test_a_goal_that_is_not_measured_is_refused(refused):
    with refused(ValueError):
        LearningCurve(goal=Goal(metric="acc")).would_be_best(_point(1, 0.5).metrics)
