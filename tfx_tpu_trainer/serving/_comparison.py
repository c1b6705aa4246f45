"""Compares a model's answers with the expected ones, and finds the largest difference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

Outcome = Literal["passed", "failed", "not run"]

Answers = Mapping[str, Mapping[str, np.ndarray]]
"""Signature name -> output name -> array."""


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
        outcome: "passed", "failed", or "not run" if it could not be checked.
        detail: The result in one line; the reason if it has not passed.
    """

    outcome: Outcome
    detail: str


class Difference(NamedTuple):
    """The largest difference between an answer and the expected one."""

    problem: str  # The problem with the answer; empty if there is none.
    size: float = 0.0  # Relative to the largest finite expected value.
    row: int = 0


def compare(answers: Answers, predictions: Mapping[str, np.ndarray], tolerance: float) -> Finding:
    """Compares each output that has the name of a prediction with it."""
    compared = []
    worst = 0.0
    for signature, outputs in answers.items():
        for key in sorted(set(outputs) & set(predictions)):
            found = difference(outputs[key], np.asarray(predictions[key]), tolerance)
            if found.problem:
                return Finding(
                    "failed",
                    f"{signature}[{key!r}] {found.problem}, from what the estimator predicts",
                )
            worst = max(worst, found.size)
            compared.append(f"{signature}[{key!r}]")
    if not compared:
        return Finding(
            "not run",
            f"it answers {', '.join(answers)}, but no output has the name of a prediction "
            f"({', '.join(sorted(predictions))})",
        )
    rows = max(np.shape(value)[0] for value in predictions.values() if np.ndim(value))
    return Finding(
        "passed",
        f"{', '.join(compared)}: {rows} rows, largest difference {worst:.2g} of the largest value",
    )


def difference(answer: np.ndarray, expected: np.ndarray, tolerance: float) -> Difference:
    """Compares one output; numbers may differ by a fraction of its largest absolute value over all rows."""
    # A row's small value may be the difference of large, rounded ones.
    number = np.issubdtype(expected.dtype, np.number)
    if answer.shape == expected.shape and not number:
        given, wanted = _as_bytes(answer), _as_bytes(expected)
        if given == wanted:
            return Difference("")
        place = next(i for i, (a, b) in enumerate(zip(given, wanted, strict=True)) if a != b)
        return _other(answer, expected, place)
    if answer.shape != expected.shape or answer.dtype != expected.dtype:
        return _other(answer, expected, 0)
    size, place = _largest(answer, expected)
    row = _row(expected, place)
    if size <= tolerance:
        return Difference("", size, row)
    return Difference(
        f"differs by {size:.2g} of its largest value, but only {tolerance:g} is allowed", size, row
    )


def _other(answer: np.ndarray, expected: np.ndarray, place: int) -> Difference:
    problem = f"is {_described(answer, place)} instead of {_described(expected, place)}"
    return Difference(problem, float("inf"), _row(expected, place))


def _row(values: np.ndarray, place: int) -> int:
    return place // max(1, values.size // (len(values) or 1)) if values.ndim else 0


def _largest(answer: np.ndarray, expected: np.ndarray) -> tuple[float, int]:
    """Returns the largest difference relative to the largest finite value, and its flat index."""
    same = (answer == expected) | ((answer != answer) & (expected != expected))
    if np.all(same):
        return 0.0, 0
    with np.errstate(invalid="ignore", over="ignore"):
        # Converted to complex numbers, since a difference of unsigned integers would wrap around.
        apart = np.where(same, 0, np.abs(answer.astype(complex) - expected.astype(complex)))
    apart = np.where(np.isfinite(apart), apart, np.inf)
    finite = np.abs(expected[np.isfinite(expected)].astype(complex))
    place = int(np.argmax(apart))
    return float(apart.flat[place]) / (float(finite.max(initial=0.0)) or 1.0), place


def _as_bytes(values: np.ndarray) -> list[bytes]:
    # Text may be objects on one side and fixed-width bytes on the other; booleans are compared, too.
    return [tf.compat.as_bytes(str(v) if isinstance(v, np.bool_) else v) for v in values.ravel()]


def _described(value: Any, place: int) -> str:
    value = np.asarray(value)
    return f"{value.dtype}{list(value.shape)} such as {value.ravel()[place : place + 1].tolist()}"
