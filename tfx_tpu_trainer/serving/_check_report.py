"""What the checks of an exported model found, and the file that keeps it."""

from __future__ import annotations

import dataclasses
import json
import os
import typing
from typing import Any, Literal, NamedTuple

import tensorflow as tf

from tfx_tpu_trainer._support.messages import printable
from tfx_tpu_trainer._support.whole_files import write_whole

CHECK_FILE = "serving_check.json"
"""Name of the report, at the root of a Model artifact."""

Outcome = Literal["passed", "failed", "not run"]
_OUTCOMES = typing.get_args(Outcome)


class Finding(NamedTuple):
    """What one check says.

    Attributes:
        outcome: "passed", "failed", or "not run" if it could not be checked.
        detail: What was found, in one line; the reason where it has not passed.
    """

    outcome: Outcome
    detail: str


class ServingCheckError(RuntimeError):
    """An exported model that must not be pushed."""


@dataclasses.dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: What was checked, for instance "serve: answers as the estimator predicts".
        outcome: "passed", "failed", or "not run" if it could not be checked.
        detail: What was found, in one line; the reason where it has not passed.
        seconds: How long it took.
    """

    name: str
    outcome: Outcome
    detail: str
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Latency:
    """How long a signature took to answer the check's request, in a session of the checking process.

    Attributes:
        signature: Its name.
        rows: Rows of the request.
        first_seconds: The first answer, which may compile and allocate.
        median_seconds: The median of those after it.
        repeats: How many those were.
    """

    signature: str
    rows: int
    first_seconds: float
    median_seconds: float
    repeats: int


@dataclasses.dataclass(frozen=True)
class ServingCheck:
    """All checks of a model.

    Attributes:
        checks: The checks, in the order in which they were made. Later kinds of checks (compiling
            for a TPU) are further entries.
        latencies: How long its `serve` metagraph took to answer; empty if that was not measured.
    """

    checks: tuple[Check, ...]
    latencies: tuple[Latency, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.outcome == "failed")

    def summary(self) -> str:
        """Says in one line what failed, or that nothing did."""
        if self.failures:
            said = "; ".join(f"{check.name}: {check.detail}" for check in self.failures)
        else:
            said = "; ".join(f"{check.name}: {check.outcome}" for check in self.checks)
        # Names of tensors, and what ops say, are the model's.
        return printable(said)

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        return {
            "passed": self.passed,
            "checks": [dataclasses.asdict(check) for check in self.checks],
            "latencies": [dataclasses.asdict(latency) for latency in self.latencies],
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ServingCheck:
        """Makes a report of what `to_json` gave."""
        return cls(
            tuple(Check(**check) for check in values["checks"]),
            # Reports of the first versions have none.
            tuple(Latency(**latency) for latency in values.get("latencies", ())),
        )


def write_serving_check(model_uri: str, report: ServingCheck) -> str:
    """Writes a report beside the model, whole or not at all.

    Args:
        model_uri: Root of the Model artifact.
        report: The report.

    Returns:
        The file's path.
    """
    path = os.path.join(model_uri, CHECK_FILE)
    write_whole(path, json.dumps(report.to_json(), indent=2) + "\n")
    return path


def read_serving_check(model_uri: str) -> ServingCheck | None:
    """Reads the report of a Model artifact.

    Args:
        model_uri: Root of the Model artifact.

    Returns:
        The report, `None` if there is none.

    Raises:
        ValueError: The file is not such a report.
    """
    path = os.path.join(model_uri, CHECK_FILE)
    if not tf.io.gfile.exists(path):
        return None
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            report = ServingCheck.from_json(json.loads(file.read()))
    except (ValueError, KeyError, TypeError, RecursionError, tf.errors.OpError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise _no_report(path, reason) from error
    for check in report.checks:
        texts = (check.name, check.outcome, check.detail)
        if not all(isinstance(text, str) for text in texts) or check.outcome not in _OUTCOMES:
            raise _no_report(path, f"a check is {check}")
    return report


def _no_report(path: str, reason: str) -> ValueError:
    return ValueError(
        f"{path} is not a report of a serving check ({reason}): remove it, or let TpuTrainer write "
        "it again."
    )
