"""Finds a model's errors in the rows of its evaluation: curves, a confusion matrix, residuals, intervals."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfx_tpu_trainer.components.report._run_data import Curve, Errors

_LABELS = ("labels", "label", "targets", "target", "y_true")
_PROBABILITIES = ("probabilities", "probability", "probs", "logistic")
_PREDICTIONS = (
    "predictions",
    "prediction",
    "predicted",
    "scores",
    "outputs",
    "y_pred",
    "class_ids",
)
_LOGITS = ("logits", "logit")
_WEIGHTS = ("weights", "weight", "example_weight", "example_weights")

_MOST_CLASSES = 50
_MOST_POINTS = 200
_BINS = 10
_RESIDUAL_BINS = 30
# 95 % of a normal distribution lies within this many standard deviations of its mean.
_NORMAL = 1.96
_QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


def find_errors(
    columns: Mapping[str, np.ndarray], *, seen: int, classes: Sequence[str] = ()
) -> Errors | None:
    """Compares labels with predictions.

    Tensors are recognized by their names: `labels`, and `probabilities`, `predictions` or
    `logits`, in this order, or a similar name. Class names are used if there are enough of them.
    """
    errors = _compare(columns, seen=seen, least=len(classes))
    if errors is None or not errors.confusion or len(errors.confusion) > len(classes):
        return errors
    return dataclasses.replace(errors, classes=tuple(map(str, classes)))


def _compare(columns: Mapping[str, np.ndarray], *, seen: int, least: int) -> Errors | None:
    pairs = _pairs(columns)
    if pairs is None:
        return None
    labels, values = pairs.labels, pairs.values
    known = {
        "label": pairs.label,
        "prediction": pairs.prediction,
        "rows": len(labels),
        "seen": seen,
        "is_weighted": _named(columns, _WEIGHTS)[1] is not None,
    }
    if values.ndim == 2:
        classes = _labelled_classes(labels, values)
        if classes is None:
            return None
        if values.shape[1] == 2:
            return _of_scores(classes.astype(bool), _second_of_two(pairs), known)
        return _of_classes(classes, values.argmax(axis=1), known, least=least)
    if values.ndim != 1 or labels.ndim != 1:
        return None
    scores = _scores(pairs)
    if scores is not None:
        return _of_scores(labels.astype(bool), scores, known)
    ids = _classes(labels, _MOST_CLASSES), _classes(values, _MOST_CLASSES)
    if labels.dtype.kind != "f" and ids[0] is not None and ids[1] is not None:
        return _of_classes(ids[0], ids[1], known, least=least)
    return _of_residuals(values - labels, known)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Pairs:
    """Labels and predictions of the rows with finite values."""

    label: str
    prediction: str
    labels: np.ndarray
    values: np.ndarray

    @property
    def is_logits(self) -> bool:
        return _last(self.prediction) in _LOGITS


def _pairs(columns: Mapping[str, np.ndarray]) -> _Pairs | None:
    label, labels = _named(columns, _LABELS)
    prediction, values = _named(columns, (*_PROBABILITIES, *_PREDICTIONS, *_LOGITS))
    if labels is None or values is None or not len(labels):
        return None
    labels, values = _squeezed(labels), _squeezed(values)
    if values.dtype.kind not in "biuf" or labels.dtype.kind not in "biuf":
        return None
    values = values.astype(np.float64)
    finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
    if labels.dtype.kind == "f":
        finite &= np.isfinite(labels).reshape(len(labels), -1).all(axis=1)
    labels, values = labels[finite], values[finite]
    if not len(labels):
        return None
    return _Pairs(label=label, prediction=prediction, labels=labels, values=values)


def _labelled_classes(labels: np.ndarray, values: np.ndarray) -> np.ndarray | None:
    """Returns each row's class number from one-hot labels; `None` if they are not one-hot."""
    if labels.shape == values.shape:
        if not (np.isin(labels, (0, 1)).all() and (labels.sum(axis=1) == 1).all()):
            # A row with several classes, or none.
            return None
        labels = labels.argmax(axis=1)
    return _classes(labels, values.shape[1]) if labels.ndim == 1 else None


def _scores(pairs: _Pairs) -> np.ndarray | None:
    """Returns each row's probability of label 1; `None` if the predictions are not probabilities."""
    values = pairs.values
    if not np.isin(pairs.labels, (0, 1)).all():
        return None
    if pairs.is_logits:
        return 1 / (1 + np.exp(-np.clip(values, -500, 500)))
    # Predictions of only 0 and 1 are decisions: a curve over their thresholds would have one point.
    is_share = ((values >= 0) & (values <= 1)).all() and not np.isin(values, (0, 1)).all()
    return values if is_share else None


def _second_of_two(pairs: _Pairs) -> np.ndarray:
    """Returns the second class's share of two classes."""
    first, second = pairs.values.T
    if pairs.is_logits or (pairs.values < 0).any():
        return 1 / (1 + np.exp(np.clip(first - second, -500, 500)))
    return second / np.maximum(first + second, np.finfo(np.float64).tiny)


def digest_of_labels(columns: Mapping[str, np.ndarray], *, seen: int) -> str | None:
    """Returns a digest that two evaluations of the same rows share; `None` without labels."""
    _, labels = _named(columns, _LABELS)
    if labels is None:
        return None
    digest = hashlib.sha256(f"{seen} {labels.dtype} {labels.shape}".encode())
    digest.update(repr(labels.tolist()).encode() if labels.dtype == object else labels.tobytes())
    return digest.hexdigest()[:16]


def _last(name: str) -> str:
    return name.rpartition("/")[2].lower()


def _named(
    columns: Mapping[str, np.ndarray], names: Sequence[str]
) -> tuple[str, np.ndarray | None]:
    for wanted in names:
        for name, column in columns.items():
            if _last(name) == wanted:
                return name, column
    return "", None


def _squeezed(values: np.ndarray) -> np.ndarray:
    """Squeezes [rows, 1, ...] to [rows]."""
    kept = [size for size in values.shape[1:] if size != 1]
    return values.reshape(len(values), *kept)


def _classes(values: np.ndarray, count: int) -> np.ndarray | None:
    """Returns values as class numbers; `None` if they are not classes."""
    if ((values < 0) | (values >= count) | (values != np.floor(values))).any():
        return None
    return values.astype(np.int64)


def _of_scores(positive: np.ndarray, scores: np.ndarray, known: Mapping[str, Any]) -> Errors:
    order = np.argsort(-scores, kind="stable")
    ranked = positive[order]
    # No threshold separates rows with equal scores: for the scores [.9 .7 .7 .2] the curves have points after 1, 3 and
    # 4 rows. The appended -1 is not a score; it ends the last group.
    ends = np.flatnonzero(np.diff(scores[order], append=-1.0))
    hits = np.concatenate([[0], np.cumsum(ranked)[ends]])
    chosen = np.concatenate([[0], ends + 1])
    positives, negatives = int(positive.sum()), int((~positive).sum())
    curves, summary = [], {"Brier score": float(np.mean((scores - positive) ** 2))}
    if positives and negatives:
        recall, fallout = hits / positives, (chosen - hits) / negatives
        precision = hits[1:] / chosen[1:]
        curves = [
            _curve("ROC", "false positive rate", "true positive rate", fallout, recall),
            _curve("Precision and recall", "recall", "precision", recall[1:], precision),
        ]
        summary["area under the ROC curve"] = float(
            np.sum(np.diff(fallout) * (recall[1:] + recall[:-1]) / 2)
        )
        summary["average precision"] = float(np.sum(np.diff(recall) * precision))
    bins = np.minimum((scores * _BINS).astype(int), _BINS - 1)
    counts = np.bincount(bins, minlength=_BINS)
    there = counts > 0
    means, shares = (
        np.bincount(bins, of_row, minlength=_BINS)[there] / counts[there]
        for of_row in (scores, positive.astype(float))
    )
    curves.append(_curve("Calibration", "mean prediction", "share of positives", means, shares))
    return Errors(
        kind="scores",
        confusion=_confusion(positive.astype(int), (scores > 0.5).astype(int), 2),
        curves=tuple(curves),
        summary=summary,
        **known,
    )


def _of_classes(
    labels: np.ndarray, predicted: np.ndarray, known: Mapping[str, Any], *, least: int
) -> Errors:
    count = max(int(max(labels.max(), predicted.max())) + 1, least)
    confusion = _confusion(labels, predicted, count) if count <= _MOST_CLASSES else ()
    return Errors(
        kind="classes",
        confusion=confusion,
        summary={"share of correct rows": float(np.mean(labels == predicted))},
        **known,
    )


def _of_residuals(residuals: np.ndarray, known: Mapping[str, Any]) -> Errors:
    # Clipped, so a few outliers do not squeeze all other rows into one bar; outliers count in the first and last
    # bar.
    low, high = np.quantile(residuals, (0.005, 0.995))
    counts, edges = np.histogram(np.clip(residuals, low, high), _RESIDUAL_BINS)
    quantiles = np.quantile(residuals, _QUANTILES)
    return Errors(
        kind="residuals",
        curves=(
            _curve(
                "Residuals",
                "prediction minus label",
                "rows",
                (edges[1:] + edges[:-1]) / 2,
                counts,
            ),
        ),
        summary={
            "mean": float(residuals.mean()),
            "mean absolute error": float(np.abs(residuals).mean()),
            "root mean squared error": float(np.sqrt(np.mean(residuals**2))),
            **{f"{q:.0%} of the rows are below": float(v) for q, v in zip(_QUANTILES, quantiles)},
        },
        **known,
    )


def _confusion(
    labels: np.ndarray, predicted: np.ndarray, count: int
) -> tuple[tuple[int, ...], ...]:
    cells = np.bincount(labels * count + predicted, minlength=count * count)
    return tuple(tuple(row) for row in cells.reshape(count, count).tolist())


def _curve(name: str, x_name: str, y_name: str, x: np.ndarray, y: np.ndarray) -> Curve:
    if len(x) > _MOST_POINTS:
        picked = np.unique(np.linspace(0, len(x) - 1, _MOST_POINTS).round().astype(int))
        x, y = x[picked], y[picked]
    return Curve(
        name=name,
        x_name=x_name,
        y_name=y_name,
        x=tuple(np.asarray(x, float).tolist()),
        y=tuple(np.asarray(y, float).tolist()),
    )


def margin_of(deviations: Sequence[float] | np.ndarray) -> float:
    """Returns half of a number's 95 % interval from the deviations of its resamplings."""
    return float(_NORMAL * np.std(deviations, ddof=1))
