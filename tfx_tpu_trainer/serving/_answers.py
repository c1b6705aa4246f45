"""Asks an exported model in a fresh process, and compares its answers with what is known."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

from tfx_tpu_trainer.serving._check_report import Finding, Latency
from tfx_tpu_trainer.serving._fresh_process import FreshProcess, FreshProcessError
from tfx_tpu_trainer.serving._requests import predict_log, read_records, write_records

Answers = Mapping[str, Mapping[str, np.ndarray]]
"""Signature name -> output name -> array."""

LOADING_PROCESS = "tfx_tpu_trainer.serving._loading_process"
"""The module to run in the `FreshProcess` passed to `load_fresh`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """Rows whose predictions are known.

    Attributes:
        inputs: Signature name -> input name -> array: the same rows for each signature.
        predictions: Output name -> array: what the estimator predicts for these rows.
    """

    inputs: Mapping[str, Mapping[str, np.ndarray]]
    predictions: Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loaded:
    """How far a fresh process got with a model."""

    # What the `serve` metagraph answered; `None` where it could not, or was not asked.
    answers: Answers | None = None
    no_answers: str | None = None  # why it could not be loaded and asked; `None` where it could
    # Why the other metagraph's graph could not be loaded; `None` where it could.
    no_graph: str | None = None
    latencies: tuple[Latency, ...] = ()  # how long the answers took


def load_fresh(
    path: str,
    *,
    inputs: Mapping[str, Mapping[str, np.ndarray]] | None,
    tags: Sequence[str] = (),
    timeout_seconds: float,
    process: FreshProcess | None = None,
) -> Loaded:
    """Loads a model's metagraphs in a fresh process, and serves rows by the `serve` metagraph.

    One process does both, as most of its time goes into importing TensorFlow. Where it ends before
    it has come to the second metagraph, another one loads that.
    """
    with tempfile.TemporaryDirectory(prefix="serving-check-") as folder:
        requests, answered = os.path.join(folder, "requests"), os.path.join(folder, "answers")

        def run(given: list[str], started: FreshProcess | None = None) -> str | None:
            try:
                with started or FreshProcess(LOADING_PROCESS) as running:
                    running.run(given, timeout_seconds=timeout_seconds)
            except FreshProcessError as error:
                return str(error)
            return None

        if inputs is not None:
            logs = [
                predict_log(of, signature_name=key, model_name="") for key, of in inputs.items()
            ]
            write_records(requests, logs)
        asked = inputs is not None
        problem = run([path, requests if asked else "", answered, ",".join(tags)], process)
        if not asked:
            return Loaded(no_graph=problem)
        if not os.path.exists(answered):
            alone = run([path, "", "", ",".join(tags)]) if tags else None
            return Loaded(no_answers=problem, no_graph=alone)
        responses = read_records(answered, predict_pb2.PredictResponse)
        took = _read_json(f"{answered}.json")
    assert inputs is not None
    answers = {
        name: {key: tf.make_ndarray(tensor) for key, tensor in response.outputs.items()}
        for name, response in zip(inputs, responses, strict=True)
    }
    latencies = tuple(
        Latency(
            signature=name,
            rows=max((len(value) for value in inputs[name].values() if np.ndim(value)), default=1),
            first_seconds=seconds["first"],
            median_seconds=seconds["median"],
            repeats=int(seconds["repeats"]),
        )
        for name, seconds in took.items()
    )
    return Loaded(answers=answers, no_graph=problem, latencies=latencies)


def _read_json(path: str) -> dict[str, Any]:
    # A process that ended after its answers may have left none.
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def compare(answers: Answers, predictions: Mapping[str, np.ndarray], tolerance: float) -> Finding:
    """Compares each output that has the name of a prediction with it.

    Numbers may differ by a part of the largest absolute value of that output over all rows: one
    row's small value is the difference of large ones, which are rounded. NaN equals NaN, and an
    infinity itself. Everything else must be the same.

    Args:
        answers: What the model answered.
        predictions: Output name -> what it should have.
        tolerance: The part.
    """
    compared = []
    worst = 0.0
    for signature, outputs in answers.items():
        for key in sorted(set(outputs) & set(predictions)):
            problem, difference = _problem(outputs[key], np.asarray(predictions[key]), tolerance)
            if problem:
                return Finding(
                    "failed", f"{signature}[{key!r}] {problem}, from what the estimator predicts"
                )
            worst = max(worst, difference)
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


def _problem(answer: np.ndarray, expected: np.ndarray, tolerance: float) -> tuple[str, float]:
    """Says what is wrong with an answer, nothing where it is right, and how far off it is."""
    number = np.issubdtype(expected.dtype, np.number)
    if answer.shape == expected.shape and not number:
        if _as_bytes(answer) == _as_bytes(expected):
            return "", 0.0
    elif answer.shape == expected.shape and answer.dtype == expected.dtype:
        difference = _difference(answer, expected)
        if difference <= tolerance:
            return "", difference
        return (
            f"differs by {difference:.2g} of its largest value, but only {tolerance:g} is allowed",
            difference,
        )
    return f"is {_described(answer)} instead of {_described(expected)}", float("inf")


def _difference(answer: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference as a part of the largest finite value."""
    same = (answer == expected) | ((answer != answer) & (expected != expected))
    if np.all(same):
        return 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.where(same, 0, np.abs(answer.astype(complex) - expected.astype(complex)))
    finite = np.abs(expected[np.isfinite(expected)].astype(complex))
    largest = float(np.max(apart)) / (float(finite.max(initial=0.0)) or 1.0)
    return largest if np.isfinite(largest) else float("inf")


def _as_bytes(values: np.ndarray) -> list[bytes]:
    # Texts are objects in one place and fixed-width bytes in the other; booleans compare too.
    return [tf.compat.as_bytes(str(v) if isinstance(v, np.bool_) else v) for v in values.ravel()]


def _described(value: Any) -> str:
    value = np.asarray(value)
    return f"{value.dtype}{list(value.shape)} such as {value.ravel()[:1].tolist()}"
