"""Defines the facts about a training as plain values: the content of `run.json` and of the run page.

Everything that is read or computed is here; the page only lays it out.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import ClassVar, Literal

import pydantic

from tfx_tpu_trainer._support.file_systems import is_local, local_path
from tfx_tpu_trainer._support.whole_files import write_whole

TRAINING = "training"
"""The source of scalars that the training itself has written."""
RUN_FILE = "run.json"
FORMAT: Literal["tfx_tpu_trainer.run/1"] = "tfx_tpu_trainer.run/1"
"""Value of `format` in the file. Keys may be added later, but are never removed and never change their meaning."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Series:
    """A scalar over the steps of a training."""

    name: str  # the summary's name, such as `loss`
    source: str  # `"training"`, or the name of the evaluation: `"eval"`, `"eval_test"`
    steps: tuple[int, ...]  # global steps, ascending
    values: tuple[float, ...]  # the value at each step; NaN and infinities are kept
    # The number of values in the event files. A thinned series keeps the last value of each equal stretch of steps.
    thinned_from: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Restart:
    """A process that resumed a training."""

    step: int  # the global step at which it resumed
    time: float  # in seconds since 1970


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learning:
    """The scalars of a training over time."""

    series: tuple[Series, ...] = ()  # one for each summary and source
    restarts: tuple[Restart, ...] = ()  # the processes after the first one


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuredSlice:
    """A part of the eval split."""

    name: str  # the slice in words, such as `payment_type=Cash`
    num_examples: int | None  # its rows; `None` if they were not counted
    metrics: Mapping[str, float]  # metric name -> value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """A curve over two numbers."""

    name: str  # the curve's name, such as `"ROC"`
    x_name: str  # the first axis
    y_name: str  # the second axis
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Errors:
    """The errors of a model."""

    # `"scores"` of two classes, `"classes"`, or `"residuals"` of a regression.
    kind: Literal["scores", "classes", "residuals"]
    label: str  # the tensor with the labels
    prediction: str  # the tensor with the predictions
    rows: int  # how many rows were compared
    seen: int  # how many rows the evaluation had
    is_weighted: bool  # whether rows have weights, which are left out here
    # [label, prediction] -> number of rows; scores above 0.5 count as 1. Empty for residuals and above 50 classes.
    confusion: tuple[tuple[int, ...], ...] = ()
    classes: tuple[str, ...] = ()  # class names; empty if unknown
    # The ROC curve, precision and recall, calibration; a histogram for residuals.
    curves: tuple[Curve, ...] = ()
    # summary statistic -> value
    summary: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """The evaluation of the exported checkpoint."""

    global_step: int | None  # its training step; `None` if unknown
    num_examples: int | None  # rows of the evaluation; `None` if they were not counted
    seconds: float | None  # duration; `None` if unknown
    metrics: Mapping[str, float]  # metric name -> value over the whole eval split
    slices: tuple[MeasuredSlice, ...] = ()  # the metrics of slices
    # Metric -> the two ends of its 95 % interval, by bootstrap on a sample of the rows; empty if rows were not sampled.
    intervals: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    sampled_rows: int | None = None  # how many rows were sampled, or `None`
    # Metric -> the distance of each of 100 resamplings from their mean, scaled to all rows; the interval is 1.96 of
    # their standard deviations.
    deviations: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    # Digest of the sampled rows' labels: if two runs have the same one, their resamplings have the same rows. `None` if
    # the tensor with the labels is unknown.
    rows_digest: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureOfSplit:
    """Statistics of a feature in one split."""

    missing: int  # rows without a value
    values: int  # values; more than rows for lists
    mean: float | None = None  # mean of numbers; `None` for text, or without values
    deviation: float | None = None  # standard deviation of the numbers
    least: float | None = None
    greatest: float | None = None
    unique: int | None = None  # number of different texts; `None` for numbers
    most_frequent: str | None = None  # the most frequent text; `None` for numbers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Feature:
    """A feature of the raw examples."""

    name: str  # its name; a nested feature's path is joined by dots
    kind: str  # `"integer"`, `"float"`, `"text"` or `"bytes"`; `"struct"` of nested ones
    by_split: Mapping[str, FeatureOfSplit]  # split -> statistics


MEAN = "mean"
MISSING = "share of rows without a value"
"""The compared quantities of a feature; the third is "share of " a value."""

# Smaller differences hardly matter, for any number of rows.
_LEAST = {"standard deviations": 0.1, "L-infinity": 0.02}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distance:
    """The distance of a feature between two sets of rows."""

    feature: str
    # `"L-infinity"`, the largest difference of a share, or `"standard deviations"` between means. Older files have
    # `"Jensen-Shannon divergence"` of numbers.
    measure: str
    value: float
    of: str = ""  # what differs: `MEAN`, `MISSING`, or the share of a text
    now: float | None = None  # the mean or share in the first set
    before: float | None = None  # that of the other
    # The difference that chance alone would make; `None` if unknown.
    chance: float | None = None

    @property
    def beyond(self) -> float:
        """The distance as a multiple of what chance explains; above 1 it counts."""
        bound = max(self.chance or 0.0, _LEAST.get(self.measure, 1.0))
        return 0.0 if self.chance is None else self.value / bound


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drift:
    """The comparison of two sets of rows, feature by feature."""

    rows: str  # the rows, such as `"split eval"`
    against: str  # the rows they are compared with, such as `"split train"`
    distances: tuple[Distance, ...]  # the shared features, largest distance first
    new: tuple[str, ...] = ()  # features of the first set only
    gone: tuple[str, ...] = ()  # features of the second set only


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """The raw examples of a training, as TFX's StatisticsGen describes them."""

    statistics: str  # the statistics' folder
    splits: Mapping[str, int]  # split -> its rows
    features: tuple[Feature, ...]  # the first 1,000 features, in the statistics' order
    all_features: int  # how many there are
    # Each split compared with the first one, and the first one with the baseline's.
    drift: tuple[Drift, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer:
    """Variables with a common prefix."""

    name: str  # the part of the names before the first `/`
    parameters: int  # elements of its variables, without optimizer slots
    slots: int  # elements of its optimizer slots
    bytes: int  # bytes of both


@dataclasses.dataclass(frozen=True, kw_only=True)
class Signature:
    """A signature of a metagraph."""

    name: str  # such as `serving_default`
    inputs: Mapping[str, str]  # input -> dtype and shape, such as `float32 [?, 3]`
    outputs: Mapping[str, str]  # output -> dtype and shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetaGraph:
    """A metagraph of a SavedModel."""

    tags: tuple[str, ...]  # sorted
    signatures: tuple[Signature, ...]
    ops: Mapping[str, int]  # place, such as `"on the TPU"` -> number of ops


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exported:
    """A SavedModel."""

    path: str  # its folder
    bytes: int  # total size of its files
    meta_graphs: tuple[MetaGraph, ...]
    warmup_requests: int  # requests that a server runs at start-up


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckOfServing:
    """A check of the exported model."""

    name: str
    outcome: str  # `"passed"`, `"failed"` or `"not run"`
    detail: str  # its result in words
    seconds: float  # its duration


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """How fast a signature answered a request of the serving check."""

    signature: str
    rows: int  # rows of the request
    first_seconds: float  # duration of the first answer
    median_seconds: float  # median duration of the following answers
    repeats: int  # number of the following answers


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepOnTpu:
    """A step of the model, as compiled by Google's compiler for a TPU slice."""

    name: str  # such as `"train"`
    ok: bool  # whether it compiles and fits
    says: str  # the result in one line
    need_bytes: int | None  # HBM per device that it needs; `None` if unknown
    limit_bytes: int | None  # HBM of a device; `None` if the compiler was not run
    by_category: Mapping[str, int]  # kind of memory -> bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preflight:
    """Whether a model compiles for a TPU slice and fits in its memory."""

    tpu: str  # the slice, such as `"v5e:2x4"`
    compiler: str  # name and version of the compiler
    steps: tuple[StepOnTpu, ...]  # the compiled steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lineage:
    """The origin of a model.

    Attributes:
        ran_on: Where it was trained, such as `"4 emulated TPU cores"`; `None` if unknown.
        inputs: Input -> the artifacts' folders, one per line.
        settings: Name -> value, for settings that differ from their defaults.
        versions: Package -> version.
        identity: The digest of inputs, code and settings; `None` if there is none.
        phase_seconds: Phase -> its duration in seconds.
        code: The user's module and a digest of its source; `None` if unknown.
        source: File -> text of the user's module when it was trained; empty if unknown.
        rows: Phase -> the number of rows that it read; a row counts each time.
    """

    ran_on: str | None = None
    inputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    identity: str | None = None
    phase_seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    code: str | None = None
    source: Mapping[str, str] = dataclasses.field(default_factory=dict)
    rows: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict of the pipeline's gate on a model.

    Attributes:
        blessed: Whether the model passed; `None` if it was not judged.
        says: The reason.
        baseline: Folder of the model it was compared with; `None` if there was none.
        baseline_metrics: That model's metrics, by name.
        since: When the gate judged it, in seconds since 1970; `None` if unknown.
        baseline_run: The pipeline run that trained the baseline; `None` if unknown.
        baseline_since: When the baseline was written, in seconds since 1970; `None` if unknown.
    """

    blessed: bool | None
    says: str
    baseline: str | None = None
    baseline_metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    since: float | None = None
    baseline_run: str | None = None
    baseline_since: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunData:
    """The facts about a training.

    Attributes:
        title: The run's name, such as `"taxi: TpuTrainer"`.
        written: When this was gathered, in seconds since 1970.
        stopped: Why it ended early; `None` if it did not.
        verdict: The gate's verdict; `None` if there was none yet.
        measured: Its evaluation; `None` if there was none.
        errors: The model's errors; `None` if labels and predictions can't be recognized.
        learning: Its scalars over time.
        data: Its training data; `None` if its statistics are unknown.
        layers: Its variables, largest layer first; empty without a checkpoint.
        preflight: The TPU compiler's result; `None` if it was not run.
        exported: The SavedModel; `None` if there is none.
        serving_checks: Checks of the SavedModel.
        answers: How fast it answered the checks' requests.
        lineage: The model's origin.
        unread: Files that could not be read, and why.
    """

    title: str
    written: float
    stopped: str | None = None
    verdict: Verdict | None = None
    measured: Measured | None = None
    errors: Errors | None = None
    learning: Learning = Learning()
    data: Data | None = None
    layers: tuple[Layer, ...] = ()
    preflight: Preflight | None = None
    exported: Exported | None = None
    serving_checks: tuple[CheckOfServing, ...] = ()
    answers: tuple[Answer, ...] = ()
    lineage: Lineage = Lineage()
    unread: tuple[str, ...] = ()
    format: Literal["tfx_tpu_trainer.run/1"] = FORMAT

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = {"ser_json_inf_nan": "strings"}


@functools.cache
def _adapter() -> pydantic.TypeAdapter[RunData]:
    return pydantic.TypeAdapter(RunData)


def to_json(run: RunData) -> str:
    """Serializes a run; NaN and infinities become the strings "NaN", "Infinity" and "-Infinity"."""
    return _adapter().dump_json(run, indent=2).decode("utf-8")


def from_json(text: str | bytes) -> RunData:
    """Restores the run that `to_json` wrote."""
    return _adapter().validate_json(text)


def write_run_data(run: RunData, folder: str) -> str:
    """Writes `run.json`; the file appears whole or not at all.

    Args:
        run: The data to write.
        folder: The folder to write into; any path that `tf.io.gfile` supports.

    Returns:
        The file's path.
    """
    path = os.path.join(folder, RUN_FILE)
    write_whole(path, to_json(run) + "\n")
    return path


def read_run_data(path: str) -> RunData | None:
    """Reads `run.json`.

    Args:
        path: The file, or its folder.

    Returns:
        The run; `None` if the file does not exist.

    Raises:
        ValueError: If the file can't be read; the message names it.
    """
    try:
        path, content = _content(path)
        return None if content is None else from_json(content)
    except (ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{path} can't be read: {reason}. Create it again with `tfx-tpu-trainer report`."
        ) from error


def _content(path: str) -> tuple[str, bytes | None]:
    """Returns the file's path and content; `None` if it does not exist."""
    if is_local(path):
        # Avoids TensorFlow, whose import takes seconds.
        path = local_path(path)
        path = os.path.join(path, RUN_FILE) if os.path.isdir(path) else path
        if not os.path.exists(path):
            return path, None
        with open(path, "rb") as local:
            return path, local.read()
    import tensorflow as tf

    path = os.path.join(path, RUN_FILE) if tf.io.gfile.isdir(path) else path
    if not tf.io.gfile.exists(path):
        return path, None
    try:
        with tf.io.gfile.GFile(path, "rb") as remote:
            return path, remote.read()
    except tf.errors.OpError as error:
        raise OSError(error.message) from error
