"""What is known of a training, as plain values: what `run.json` holds and the run page shows.

Whatever is read or computed is in here; the page only arranges it.
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
"""Source of what a training itself has written."""
RUN_FILE = "run.json"
FORMAT: Literal["tfx_tpu_trainer.run/1"] = "tfx_tpu_trainer.run/1"
"""Value of `format` in the file. Keys may be added later; none is removed or changes its meaning."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Series:
    """A number over the steps of a training."""

    name: str  # the name of the summary, such as `loss`
    source: str  # `"training"`, or the name of the evaluation: `"eval"`, `"eval_test"`
    steps: tuple[int, ...]  # global steps, ascending
    values: tuple[float, ...]  # the value at each of them; NaN and infinities stay what they are
    # How many values the event files hold. Where these are fewer, each stands for an equal stretch of the steps, of
    # which it is the last one.
    thinned_from: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Restart:
    """A process that went on with a training."""

    step: int  # the global step that it began at
    time: float  # when, in seconds since 1970


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learning:
    """How the numbers of a training went."""

    series: tuple[Series, ...] = ()  # one for each summary
    restarts: tuple[Restart, ...] = ()  # the processes after the first


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuredSlice:
    """A part of the eval split."""

    name: str  # the slice in words, such as `payment_type=Cash`
    num_examples: int | None  # its rows, or `None` where they were not counted
    metrics: Mapping[str, float]  # metric name -> value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """A line between two numbers."""

    name: str  # what it is, such as `"ROC"`
    x_name: str  # what its first number is
    y_name: str  # what its second number is
    x: tuple[float, ...]  # the first numbers
    y: tuple[float, ...]  # the second numbers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Errors:
    """What a model gets wrong."""

    # `"scores"` of two classes, `"classes"`, or `"residuals"` of a regression.
    kind: Literal["scores", "classes", "residuals"]
    label: str  # the tensor that the labels are
    prediction: str  # the tensor that the predictions are
    rows: int  # how many rows were compared
    seen: int  # how many the evaluation had
    is_weighted: bool  # whether rows have weights, which are left out here
    # [label, prediction]: numbers of rows; of scores, those above 0.5 are taken for 1. Empty for residuals, and for
    # more than 50 classes.
    confusion: tuple[tuple[int, ...], ...] = ()
    classes: tuple[str, ...] = ()  # the names of the classes; empty where nobody has told them
    # The ROC curve, precision and recall, calibration; the residuals' histogram.
    curves: tuple[Curve, ...] = ()
    # What these come to -> value.
    summary: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """What the evaluation of the exported checkpoint says."""

    global_step: int | None  # its training step, or `None` where nobody wrote it down
    num_examples: int | None  # rows of the evaluation, or `None` where they were not counted
    seconds: float | None  # how long it took, or `None`
    metrics: Mapping[str, float]  # metric name -> value over the whole eval split
    slices: tuple[MeasuredSlice, ...] = ()  # the same of its parts
    # Metric name -> the two ends of its 95 % interval, by the bootstrap on a sample of the rows; none where the rows
    # were not sampled.
    intervals: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    sampled_rows: int | None = None  # how many rows were sampled, or `None`
    # Metric name -> how far each of 100 resamplings is from their mean, scaled to all rows: 1.96 of their standard
    # deviations make the interval.
    deviations: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    # Digest of the sampled rows' labels: where two runs have the same one, their resamplings have the same rows.
    # `None` if it is unknown which tensor holds the labels.
    rows_digest: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureOfSplit:
    """What the rows of a split have of a feature."""

    missing: int  # rows without a value
    values: int  # its values; more than rows where it is a list
    mean: float | None = None  # of numbers; `None` of strings, and where there are none
    deviation: float | None = None  # the numbers' standard deviation, likewise
    least: float | None = None  # the smallest number, likewise
    greatest: float | None = None  # the largest number, likewise
    unique: int | None = None  # how many strings differ; `None` of numbers
    most_frequent: str | None = None  # the most frequent text; `None` of numbers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Feature:
    """A feature of the raw examples."""

    name: str  # its name; the steps of a path, with dots
    kind: str  # `"integer"`, `"float"`, `"text"` or `"bytes"`; `"struct"` of nested ones
    by_split: Mapping[str, FeatureOfSplit]  # split -> what its rows have


MEAN = "mean"
MISSING = "share of rows without a value"
"""What of a feature is compared; the third is "share of " a value."""

# A difference below it hardly matters, however many rows there are.
_LEAST = {"standard deviations": 0.1, "L-infinity": 0.02}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distance:
    """How far a feature in one set of rows is from the same in another."""

    feature: str
    # `"L-infinity"`, the largest difference of a share, or `"standard deviations"` between means. Older files have
    # `"Jensen-Shannon divergence"` of numbers.
    measure: str
    value: float  # how far
    of: str = ""  # what differs: `MEAN`, `MISSING`, or the share of a text
    now: float | None = None  # that of the one set
    before: float | None = None  # that of the other
    # How far they might be apart if the rows had been assigned to the two sets at random; `None` if unknown.
    chance: float | None = None

    @property
    def beyond(self) -> float:
        """How many times as far apart they are as chance would have them; above 1 the difference counts."""
        bound = max(self.chance or 0.0, _LEAST.get(self.measure, 1.0))
        return 0.0 if self.chance is None else self.value / bound


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drift:
    """Two sets of rows, compared feature by feature."""

    rows: str  # which rows, such as `"split eval"`
    against: str  # what they are compared with, such as `"split train"`
    distances: tuple[Distance, ...]  # the features that both have, the farthest first
    new: tuple[str, ...] = ()  # features that only the former have
    gone: tuple[str, ...] = ()  # features that only the latter have


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """What a training's raw examples are, by the statistics of TFX's StatisticsGen."""

    statistics: str  # the folder of the statistics
    splits: Mapping[str, int]  # split -> its rows
    features: tuple[Feature, ...]  # the features, 1,000 at most, in their order
    all_features: int  # how many there are
    # Splits against the first one, and the first one against the baseline's.
    drift: tuple[Drift, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer:
    """Variables whose names begin alike."""

    name: str  # what the names have before the first `/`
    parameters: int  # elements of its variables, without those of an optimizer's slots
    slots: int  # elements of the optimizer's slots
    bytes: int  # of all of them


@dataclasses.dataclass(frozen=True, kw_only=True)
class Signature:
    """What a metagraph answers."""

    name: str  # its name, such as `serving_default`
    inputs: Mapping[str, str]  # input name -> dtype and shape in words, such as `float32 [?, 3]`
    outputs: Mapping[str, str]  # output name -> the same


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetaGraph:
    """One of the graphs of a SavedModel."""

    tags: tuple[str, ...]  # its tags, sorted
    signatures: tuple[Signature, ...]  # what it answers
    ops: Mapping[str, int]  # where ops run, such as `"on the TPU"` -> how many do


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exported:
    """A SavedModel."""

    path: str  # its folder
    bytes: int  # of its files
    meta_graphs: tuple[MetaGraph, ...]  # its graphs
    warmup_requests: int  # how many requests a server loads it with


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckOfServing:
    """A check of the exported model."""

    name: str  # what was checked
    outcome: str  # `"passed"`, `"failed"` or `"not run"`
    detail: str  # what was found
    seconds: float  # how long it took


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """How long a signature took to answer a request of the serving check."""

    signature: str
    rows: int  # rows of the request
    first_seconds: float  # the first answer
    median_seconds: float  # the median of those after it
    repeats: int  # how many those were


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepOnTpu:
    """A step of the model, as Google's compiler has compiled it for a TPU slice."""

    name: str  # its name, such as `"train"`
    ok: bool  # whether it compiles and fits
    says: str  # that in a line
    need_bytes: int | None  # HBM of a device that it needs; `None` where that is not known
    limit_bytes: int | None  # HBM of a device; `None` where the compiler was not asked
    by_category: Mapping[str, int]  # what the memory is for -> bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preflight:
    """Whether a model compiles for a TPU slice and fits it."""

    tpu: str  # the slice, such as `"v5e:2x4"`
    compiler: str  # name and version of the compiler
    steps: tuple[StepOnTpu, ...]  # the steps that were compiled


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lineage:
    """Where a model comes from.

    Attributes:
        ran_on: Where it was trained, such as `"4 emulated TPU cores"`; `None` if unknown.
        inputs: Input -> the artifacts' folders, one a line.
        settings: Setting that differs from its default -> value.
        versions: Package -> version.
        identity: The digest of inputs, code and settings; `None` if there is none.
        phase_seconds: Phase -> how long it took.
        code: The user's module and a digest of its source; `None` if unknown.
        source: File -> text of the user's module when it was trained; empty if unknown.
        rows: What was done -> how many rows went through it; a row counts each time.
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
        says: Why.
        baseline: Folder of the model that it was compared with; `None` where there was none.
        baseline_metrics: That model's metrics, by name.
        since: When the gate said so, in seconds since 1970; `None` where nobody wrote it down.
        baseline_run: The pipeline run that has trained the baseline; `None` if unknown.
        baseline_since: When that model was written, in seconds since 1970; `None` likewise.
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
    """The known facts about a training.

    Attributes:
        title: What it is called, such as `"taxi: TpuTrainer"`.
        written: When this was gathered, in seconds since 1970.
        stopped: What ended it before its end; `None` where nothing did.
        verdict: What the gate said; `None` where it has not been asked when this was gathered.
        measured: What its evaluation says; `None` where there was none.
        errors: What the model gets wrong; `None` where nobody can tell labels from predictions.
        learning: How its numbers went.
        data: What it was trained on; `None` if its statistics are unknown.
        layers: Its variables, largest layer first; empty without a checkpoint.
        preflight: What the TPU's compiler says of it; `None` where it was not asked.
        exported: The SavedModel; `None` if there is none.
        serving_checks: What was checked of it.
        answers: How long it took to answer the check's requests.
        lineage: Where it comes from.
        unread: What is there and could not be read, and why.
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
    """Returns a run as JSON; NaN and infinities are the strings "NaN", "Infinity" and "-Infinity"."""
    return _adapter().dump_json(run, indent=2).decode("utf-8")


def from_json(text: str | bytes) -> RunData:
    """Returns the run that `to_json` wrote."""
    return _adapter().validate_json(text)


def write_run_data(run: RunData, folder: str) -> str:
    """Writes `run.json`; the file appears whole or not at all.

    Args:
        run: What to write.
        folder: Where it goes; any path `tf.io.gfile` knows.

    Returns:
        The file's path.
    """
    path = os.path.join(folder, RUN_FILE)
    write_whole(path, to_json(run) + "\n")
    return path


def read_run_data(path: str) -> RunData | None:
    """Reads `run.json`.

    Args:
        path: The file, or the folder that it is in.

    Returns:
        The run; `None` if there is no such file.

    Raises:
        ValueError: The file can't be understood; the text names it.
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
    """Returns the path of the file that is meant, and what is in it; `None` if there is none."""
    if is_local(path):
        # Without TensorFlow, whose import takes seconds.
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
