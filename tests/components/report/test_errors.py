"""Compares a model's errors with scikit-learn's results."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as sklearn

from tfx_tpu_trainer.components.report._errors import find_errors

_RANDOM = np.random.default_rng(5)
_ROWS = 150


def _scores(rows=_ROWS):
    scores = _RANDOM.random(rows).round(2)
    return (_RANDOM.random(rows) < scores).astype(np.int64), scores.astype(np.float32)


def _curve(errors, name):
    (curve,) = (curve for curve in errors.curves if curve.name == name)
    return np.array(curve.x), np.array(curve.y)


@pytest.mark.parametrize("logits", [False, True])
@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_scores_are_compared_as_scikit_learn_does(logits, shape):
    labels, scores = _scores()
    scores = np.clip(scores, 0.01, 0.99)
    given = np.log(scores / (1 - scores)) if logits else scores
    name = "logits" if logits else "probability"
    errors = find_errors({"labels": labels, name: given.reshape(shape)}, seen=_ROWS)
    assert errors.kind == "scores"
    assert (errors.label, errors.prediction, errors.rows) == ("labels", name, _ROWS)
    assert errors.summary["area under the ROC curve"] == pytest.approx(
        sklearn.roc_auc_score(labels, scores)
    )
    assert errors.summary["average precision"] == pytest.approx(
        sklearn.average_precision_score(labels, scores)
    )
    assert errors.summary["Brier score"] == pytest.approx(sklearn.brier_score_loss(labels, scores))
    np.testing.assert_array_equal(
        errors.confusion, sklearn.confusion_matrix(labels, scores > 0.5, labels=[0, 1])
    )
    fallout, recall, _ = sklearn.roc_curve(labels, scores, drop_intermediate=False)
    np.testing.assert_allclose(_curve(errors, "ROC"), [fallout, recall])
    precision, recall, _ = sklearn.precision_recall_curve(labels, scores)
    of_curve = _curve(errors, "Precision and recall")
    np.testing.assert_allclose(of_curve, [recall[:-1][::-1], precision[:-1][::-1]])


@pytest.mark.parametrize("logits", [False, True])
def test_two_classes_side_by_side_are_scores_of_the_second(logits):
    labels, scores = _scores()
    both = np.stack([1 - scores, scores], axis=1).clip(0.01, 0.99)
    given = {"logits": np.log(both) + 3} if logits else {"probabilities": both}
    errors = find_errors({"labels": labels, **given}, seen=_ROWS, classes=("no", "yes"))
    assert (errors.kind, errors.classes) == ("scores", ("no", "yes"))
    assert errors.summary["Brier score"] == pytest.approx(
        sklearn.brier_score_loss(labels, both[:, 1])
    )


def test_names_of_classes_are_kept_where_there_is_one_for_each():
    rows = {"labels": np.array([0, 1, 1]), "probabilities": np.eye(3)[[0, 1, 0]]}
    for names, kept in (("a", ()), ("abcd", ("a", "b", "c", "d"))):
        errors = find_errors(rows, seen=3, classes=names)
        assert errors.classes == kept
    assert errors.confusion == ((1, 0, 0, 0), (1, 1, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0))


def test_calibration_is_that_of_ten_bins():
    labels, scores = _scores(1000)
    # scikit-learn's bins are open at their left ends, and a score of two digits may be one.
    scores = scores + 0.001 * (scores < 0.99)
    errors = find_errors({"label": labels, "predictions": scores}, seen=1000)
    from sklearn.calibration import calibration_curve

    shares, means = calibration_curve(labels, np.clip(scores, 0, 1), n_bins=10)
    np.testing.assert_allclose(_curve(errors, "Calibration"), [means, shares], rtol=1e-5)


@pytest.mark.parametrize("one_hot", [False, True])
def test_classes_are_the_largest_logits(one_hot):
    labels, logits = _RANDOM.integers(0, 10, _ROWS), _RANDOM.normal(size=(_ROWS, 10))
    given = np.eye(10)[labels] if one_hot else labels
    errors = find_errors({"labels": given, "logits": logits}, seen=9000)
    predicted = logits.argmax(axis=1)
    assert errors.kind == "classes"
    assert (errors.rows, errors.seen) == (_ROWS, 9000)
    np.testing.assert_array_equal(
        errors.confusion, sklearn.confusion_matrix(labels, predicted, labels=range(10))
    )
    assert errors.summary == {
        "share of correct rows": pytest.approx(sklearn.accuracy_score(labels, predicted))
    }


def test_predicted_classes_are_compared_as_they_are():
    labels, predicted = _RANDOM.integers(0, 3, _ROWS), _RANDOM.integers(0, 3, _ROWS)
    errors = find_errors({"labels": labels, "class_ids": predicted}, seen=_ROWS)
    assert errors.kind == "classes"
    np.testing.assert_array_equal(errors.confusion, sklearn.confusion_matrix(labels, predicted))


def test_residuals_are_those_of_a_regression():
    labels = _RANDOM.normal(size=_ROWS).astype(np.float32)
    predicted = labels + _RANDOM.normal(size=_ROWS).astype(np.float32)
    errors = find_errors({"labels": labels, "predicted": predicted}, seen=_ROWS)
    assert errors.kind == "residuals"
    assert errors.summary["mean absolute error"] == pytest.approx(
        sklearn.mean_absolute_error(labels, predicted), rel=1e-5
    )
    assert errors.summary["root mean squared error"] == pytest.approx(
        np.sqrt(sklearn.mean_squared_error(labels, predicted)), rel=1e-5
    )
    assert errors.summary["50% of the rows are below"] == pytest.approx(
        np.median(predicted - labels), rel=1e-5
    )
    assert sum(errors.curves[0].y) == _ROWS
    assert errors.confusion == ()


def test_many_scores_make_a_curve_of_200_points():
    labels, scores = np.arange(100_000) % 2, _RANDOM.random(100_000)
    errors = find_errors({"labels": labels, "probabilities": scores}, seen=10**6)
    x, y = _curve(errors, "ROC")
    assert len(x) == 200
    assert (x[0], y[0], x[-1], y[-1]) == (0, 0, 1, 1)


def test_of_one_class_there_is_no_roc_curve():
    scores = _RANDOM.random(20)
    errors = find_errors({"labels": np.ones(20), "probability": scores}, seen=20)
    assert [curve.name for curve in errors.curves] == ["Calibration"]
    assert set(errors.summary) == {"Brier score"}


def test_rows_that_are_not_finite_are_left_out():
    labels, scores = _scores()
    scores[:7] = np.nan
    errors = find_errors({"labels": labels, "probability": scores}, seen=_ROWS)
    assert errors.rows == _ROWS - 7
    assert find_errors({"labels": labels, "probability": scores * np.nan}, seen=_ROWS) is None


def test_weights_are_named():
    labels, scores = _scores()
    columns = {"labels": labels, "probability": scores}
    assert not find_errors(columns, seen=1).is_weighted
    assert find_errors({**columns, "weights": scores}, seen=1).is_weighted


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"labels": np.zeros(3)},
        {"labels": np.zeros(3), "other": np.zeros(3)},
        {"labels": np.zeros(0), "logits": np.zeros(0)},
        {"labels": np.array([b"a"]), "logits": np.zeros(1)},
        {"labels": np.zeros(3), "predictions": np.array([b"a"] * 3, object)},
        {"labels": np.zeros((3, 2)), "logits": np.zeros(3)},
        {"labels": np.zeros((3, 2, 2)), "logits": np.zeros((3, 2, 2))},
        {"labels": np.full(3, 7), "logits": np.zeros((3, 2))},
        # A row of several classes, and one of none.
        {"labels": np.array([[1, 1], [0, 0]]), "logits": np.zeros((2, 2))},
    ],
)
def test_what_cannot_be_compared_is_none(columns):
    assert find_errors(columns, seen=3) is None
