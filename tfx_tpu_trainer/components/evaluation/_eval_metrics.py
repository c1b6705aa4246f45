"""Defines EvalMetrics and `eval_metrics.json`, the metrics that a Model artifact carries.

The file is at the root of the Model artifact, next to `Format-Serving`, so a baseline still has its own numbers
months later.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer._support.whole_files import parse_document, write_document
from tfx_tpu_trainer.components.evaluation._data_slices import SliceKey

_logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from tfx_tpu_trainer.estimator.extending import EvalResult


LOSS = "loss"
LOSS_BY_ROWS = "loss_by_rows"
"""The two means of an evaluation's loss: over batches, as in `evaluate()`, and over rows."""

EVAL_METRICS_FILE = "eval_metrics.json"
"""Name of the file with a model's metrics, at the root of its Model artifact."""

_FORMAT_VERSION = 1

# JSON has no token for these three; the spelling is that of protobuf's JSON mapping.
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclasses.dataclass(frozen=True)
class SliceMetrics:
    """The metrics of one slice of the eval split.

    Attributes:
        key: the slice, in TFMA's form: pairs of a feature and a value, sorted by feature.
        metrics: metric name -> value over the rows of the slice; scalars. without `loss` and `loss_by_rows`, which
            belong to whole batches.
        num_examples: rows of the slice, or None when they weren't counted.

    Raises:
        ValueError: the key is the whole split's, or a metric is not a scalar number.
    """

    key: SliceKey
    metrics: Mapping[str, float]
    num_examples: int | None = None

    def __post_init__(self) -> None:
        if not self.key:
            raise ValueError(
                "A slice needs a key; metrics of the whole split are EvalMetrics.overall."
            )
        scalars = {name: as_scalar(name, value) for name, value in self.metrics.items()}
        object.__setattr__(self, "metrics", types.MappingProxyType(scalars))


@dataclasses.dataclass(frozen=True)
class EvalMetrics:
    """The metrics of one evaluation, and what was evaluated.

    Examples:
        >>> from tfx_tpu_trainer.components.evaluation import EvalMetrics
        >>> metrics = EvalMetrics(overall={"auc": 0.94, "loss": float("nan")}, global_step=1000)
        >>> metrics.overall["auc"]
        0.94
        >>> metrics.diverged
        ('loss',)

    Attributes:
        overall: metric name -> value over the whole eval split. Values are scalars (Python or NumPy numbers, arrays of
            shape `()`); they are kept as Python floats, which hold every float32 and float64 exactly. `loss` is one of
            them, and `loss_by_rows` if rows were counted.
        global_step: training step of the evaluated checkpoint; None only if the metrics were read from a
            ModelEvaluation without it.
        num_examples: rows evaluated, or None when they weren't counted.
        checkpoint: path of the evaluated checkpoint, or None (untrained or already removed).
        seconds: wall time of the evaluation, or None when unknown.
        slices: the metrics of slices of the split, each slice once.

    Raises:
        ValueError: no metric, or a metric that is not a scalar number.
    """

    overall: Mapping[str, float]
    global_step: int | None
    num_examples: int | None = None
    checkpoint: str | None = None
    seconds: float | None = None
    slices: tuple[SliceMetrics, ...] = ()

    def __post_init__(self) -> None:
        if not self.overall:
            raise ValueError(
                "EvalMetrics is empty: the evaluation returned no metric, not even the loss."
            )
        scalars = {name: as_scalar(name, value) for name, value in self.overall.items()}
        object.__setattr__(self, "overall", types.MappingProxyType(scalars))

    @property
    def diverged(self) -> tuple[str, ...]:
        """The metrics by which a model diverged: infinite ones, and a loss that is NaN.

        Other NaN metrics may just be undefined on these rows.
        """
        return diverged_names(self.overall)

    def of_slice(self, key: SliceKey) -> Mapping[str, float] | None:
        """Returns the metrics of a slice, `()` for the whole split; None if it wasn't measured."""
        if not key:
            return self.overall
        return next((one.metrics for one in self.slices if one.key == key), None)

    def with_checkpoint_moved(self, before: str, after: str) -> EvalMetrics:
        """Renames the checkpoint's folder after a move.

        Args:
            before: the folder it was in, or one above.
            after: where that folder's files are now.
        """
        if self.checkpoint is None or not self.checkpoint.startswith(before + "/"):
            return self
        return dataclasses.replace(self, checkpoint=after + self.checkpoint[len(before) :])

    @classmethod
    def from_result(cls, result: EvalResult) -> EvalMetrics:
        """Returns the metrics of an evaluation by the engine, as the artifacts record them.

        `loss` is what `evaluate()` returns and TensorBoard shows: on the host the mean of the batches' losses, as in
        the original. `loss_by_rows` is exact: a short last batch counts by its rows, with any batch size; it is
        missing if the engine found no rows to count. Metrics that are not scalars (a confusion matrix, a vector by
        class) are left out with a warning, because a ModelEvaluation's thresholds and MLMD's properties take only
        scalars; they do not make a finished training fail.

        Args:
            result: The result of `evaluate_result()`.

        Returns:
            The scalar metrics without `global_step`, which has its own field.
        """
        # With batches of 4, 4 and 2 rows and mean losses of 1, 1 and 4, `loss` is (1 + 1 + 4) / 3 = 2 and
        # `loss_by_rows` is (4 + 4 + 8) / 10 = 1.6. Models are compared by the second, since it does not depend on the
        # batch size of the evaluation.
        overall = {}
        for name, value in result.metrics.items():
            if name == "global_step":
                continue
            try:
                overall[name] = as_scalar(name, value)
            except ValueError as error:
                _logger.warning("Left out of the evaluation artifacts: %s", error)
        if not math.isnan(result.loss_by_rows):
            overall.setdefault(LOSS_BY_ROWS, float(result.loss_by_rows))
        return cls(
            # In the file's order.
            overall=dict(sorted(overall.items())),
            global_step=int(result.global_step),
            num_examples=None if result.num_examples is None else int(result.num_examples),
            checkpoint=result.checkpoint_path,
            seconds=float(result.seconds),
        )


def as_scalar(name: str, value: Any) -> float:
    """Returns a metric's value as a Python float."""
    array = np.asarray(value)
    if array.shape != ():
        raise ValueError(
            f"metric {name!r} has shape {array.shape}, but only scalars can be recorded: let metric_fn "
            "return a scalar, for instance its mean, or one metric for each element."
        )
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"metric {name!r} is {array.item()!r} of type {array.dtype}, but only numbers can be recorded."
        )
    return float(array)


def write_eval_metrics(model_uri: str, metrics: EvalMetrics) -> str:
    """Writes `eval_metrics.json` at the root of a Model artifact.

    Values have full float precision (reading gives the same bits); NaN and infinities are the strings
    "NaN", "Infinity" and "-Infinity". The file appears whole or not at all.

    Args:
        model_uri: folder of the Model artifact, created if missing; any path that tf.io.gfile supports.
        metrics: the metrics to write.

    Returns:
        The file's path.
    """
    document: dict[str, Any] = {
        "version": _FORMAT_VERSION,
        "global_step": metrics.global_step,
        "num_examples": metrics.num_examples,
        "checkpoint": metrics.checkpoint,
        "seconds": None if metrics.seconds is None else number_to_json(metrics.seconds),
        "overall": metrics_to_json(metrics.overall),
    }
    if metrics.slices:
        document["slices"] = [
            {
                "slice": [[name, value] for name, value in one.key],
                "num_examples": one.num_examples,
                "metrics": metrics_to_json(one.metrics),
            }
            for one in metrics.slices
        ]
    path = os.path.join(model_uri, EVAL_METRICS_FILE)
    write_document(path, document)
    return path


def read_eval_metrics(model_uri: str) -> EvalMetrics | None:
    """Reads a Model artifact's `eval_metrics.json`.

    Examples:
        >>> from tfx_tpu_trainer.components.evaluation import EvalMetrics, read_eval_metrics, write_eval_metrics
        >>> write_eval_metrics("model", EvalMetrics(overall={"auc": 0.1 + 0.2}, global_step=1000))
        'model/eval_metrics.json'
        >>> read = read_eval_metrics("model")
        >>> read.overall["auc"], read.global_step
        (0.30000000000000004, 1000)

    Args:
        model_uri: folder of the Model artifact.

    Returns:
        The metrics, or None if the model lacks the file because another trainer made it.

    Raises:
        ValueError: the file exists but can't be read; the message names it.
    """
    path = os.path.join(model_uri, EVAL_METRICS_FILE)
    if not tf.io.gfile.exists(path):
        return None
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            text = file.read()
        document = parse_document(text, newest=_FORMAT_VERSION)
        return EvalMetrics(
            overall=metrics_from_json(document["overall"]),
            global_step=count_from_json("global_step", document["global_step"]),
            num_examples=count_from_json("num_examples", document["num_examples"]),
            checkpoint=_text_from_json("checkpoint", document["checkpoint"]),
            seconds=seconds_from_json(document["seconds"]),
            slices=tuple(_slice_from_json(part) for part in document.get("slices", ())),
        )
    except KeyError as error:
        raise ValueError(f"{path} can't be read: it has no {error}; {_ADVICE}.") from error
    except (ValueError, TypeError, tf.errors.OpError) as error:
        reason = error.message if isinstance(error, tf.errors.OpError) else str(error).rstrip(".")
        raise ValueError(f"{path} can't be read: {reason}; {_ADVICE}.") from error


_ADVICE = "restore the file that its trainer wrote, or train the model again"


def diverged_names(metrics: Mapping[str, float]) -> tuple[str, ...]:
    """Returns the names of diverged metrics; see `EvalMetrics.diverged`."""
    return tuple(
        name
        for name, value in metrics.items()
        if math.isinf(value) or (name in (LOSS, LOSS_BY_ROWS) and math.isnan(value))
    )


def number_to_json(value: float) -> float | str:
    """Converts a float to JSON: itself, or "NaN", "Infinity", "-Infinity"."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def number_from_json(value: Any) -> float:
    """Restores the float that `number_to_json` wrote."""
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{value!r} is not a number (nor one of {', '.join(_NOT_FINITE)})")
    try:
        return float(value)
    except OverflowError:
        raise ValueError("a number of more than 308 digits is not a metric") from None


def metrics_to_json(metrics: Mapping[str, float]) -> dict[str, float | str]:
    """Converts metrics to JSON, sorted by name."""
    return {name: number_to_json(value) for name, value in sorted(metrics.items())}


def metrics_from_json(metrics: Any) -> dict[str, float]:
    """Restores metrics from JSON."""
    if not isinstance(metrics, dict):
        raise ValueError(f"its metrics are a {type(metrics).__name__} instead of an object")
    values = {}
    for name, value in metrics.items():
        try:
            values[name] = number_from_json(value)
        except ValueError as error:
            raise ValueError(f"metric {name!r}: {error}") from None
    return values


def count_from_json(name: str, value: Any) -> int | None:
    """Restores a count from JSON; None if unknown."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"{name} is {value!r}, which is not a count")
    return value


def seconds_from_json(value: Any) -> float | None:
    """Restores a duration from JSON; None if unknown."""
    seconds = None if value is None else number_from_json(value)
    if seconds is not None and seconds < 0:
        raise ValueError(f"seconds is {value!r}, which is not a duration")
    return seconds


def _text_from_json(name: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} is {value!r}, which is not a string")
    return value


def _slice_from_json(part: Mapping[str, Any]) -> SliceMetrics:
    return SliceMetrics(
        key=tuple((name, value) for name, value in part["slice"]),
        metrics=metrics_from_json(part["metrics"]),
        num_examples=count_from_json("num_examples", part["num_examples"]),
    )


if TYPE_CHECKING:
    from tfx import v1 as tfx

METRIC_PREFIX = "eval_"
GLOBAL_STEP = "global_step"
NUM_EXAMPLES = "num_examples"
CHECKPOINT = "evaluated_checkpoint"
SECONDS = "evaluation_seconds"


def metric_properties(metrics: EvalMetrics) -> dict[str, float | int | str]:
    """Names the custom properties that describe an evaluation.

    Args:
        metrics: the evaluation.

    Returns:
        `eval_<metric>` for each metric, `global_step`, `num_examples`, `evaluated_checkpoint` and `evaluation_seconds`,
        without those that are unknown. A metric that is not finite is the text "NaN", "Infinity" or "-Infinity": MLMD
        can't store it, and the run would fail. MLMD's databases keep six digits of a double;
        `eval_metrics.json` has all.
    """
    properties: dict[str, float | int | str] = {
        f"{METRIC_PREFIX}{name}": number_to_json(value) for name, value in metrics.overall.items()
    }
    known = {
        GLOBAL_STEP: metrics.global_step,
        NUM_EXAMPLES: metrics.num_examples,
        CHECKPOINT: metrics.checkpoint,
        SECONDS: metrics.seconds,
    }
    return properties | {name: value for name, value in known.items() if value is not None}


def set_properties(artifact: tfx.dsl.Artifact, properties: Mapping[str, float | int | str]) -> None:
    """Sets custom properties of an artifact, each with the MLMD type of its value.

    Args:
        artifact: a TFX artifact; changed in place.
        properties: name -> value; see `metric_properties`.
    """
    for name, value in properties.items():
        if isinstance(value, str):
            artifact.set_string_custom_property(name, value)
        elif isinstance(value, int):
            artifact.set_int_custom_property(name, value)
        else:
            artifact.set_float_custom_property(name, value)
