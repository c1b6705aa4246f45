"""Defines a benchmark process's measurements and results, as values for JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from typing import Any

TITLES = {
    "mlp": "MLP, batch 64",
    "cnn": "CNN, batch 128",
    "wide_and_deep": "wide-and-deep, batch 512",
    "bert": "BERT-base, sequences of 128, batch 8",
    "resnet": "ResNet-50, 64 pixels, batch 16",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """How much of each activity is measured, for one model.

    Attributes:
        segment_steps: Training steps between two readings of the clock; a multiple of
            `loop_steps`.
        segments: Readings kept. One more segment goes before them, to warm up.
        eval_batches: A small and a large number of batches, also in whole loops. The difference of their times is the
            time of the additional batches; the common time, such as building the graph, cancels.
        predict_batches: The same for prediction.
        pairs: How often the small and the large number are run.
        first_steps: Steps of the first call, which gives the time to the first step.
        loop_steps: The most steps in one call, for contenders that make several.
        activities: The activities measured on the model, if they are measured for a contender.
        together: Whether all contenders are in memory at once and take turns at each activity, so compared
            measurements are close in time; else each has all its turns before the next one starts.
    """

    segment_steps: int
    segments: int
    eval_batches: tuple[int, int]
    predict_batches: tuple[int, int]
    pairs: int
    first_steps: int = 1
    loop_steps: int = 100
    activities: tuple[str, ...] = ("train", "evaluate", "predict")
    together: bool = True

    @property
    def summary_steps(self) -> int:
        """Steps between an estimator's events: its default, or the length of a shorter segment."""
        return min(100, self.segment_steps)


FULL = {
    "mlp": Plan(
        # Here and below, enough for `jit_compile="auto"` to measure both of its loops during the warm-up.
        segment_steps=6000,
        segments=3,
        eval_batches=(500, 5500),
        predict_batches=(500, 3500),
        pairs=2,
    ),
    "cnn": Plan(
        segment_steps=100,
        segments=2,
        eval_batches=(100, 300),
        predict_batches=(100, 300),
        pairs=1,
    ),
    "wide_and_deep": Plan(
        segment_steps=1000,
        segments=3,
        eval_batches=(100, 1100),
        predict_batches=(100, 700),
        pairs=2,
    ),
}
# Few steps of several seconds each; evaluations and predictions would add nothing to those of the small models.
_OF_REAL_SIZE = Plan(
    segment_steps=4,
    segments=2,
    eval_batches=(2, 4),
    predict_batches=(2, 4),
    pairs=1,
    loop_steps=2,
    activities=("train",),
)
OF_REAL_SIZE = {
    # Each contender needs 4 GB.
    "bert": dataclasses.replace(_OF_REAL_SIZE, together=False),
    "resnet": dataclasses.replace(_OF_REAL_SIZE, segment_steps=10, loop_steps=5),
}
"""Models that take long and need gigabytes: measured only if named."""

QUICK = {
    "mlp": dataclasses.replace(FULL["mlp"], segment_steps=2000, segments=2, pairs=1),
    "cnn": dataclasses.replace(
        FULL["cnn"], segments=1, eval_batches=(100, 200), predict_batches=(100, 200)
    ),
    "wide_and_deep": dataclasses.replace(FULL["wide_and_deep"], segments=2, pairs=1),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """A measurement to make: one contender and one model in one process."""

    contender: str
    model: str
    plan: Plan
    data_folder: str
    model_dir: str
    # Start of the process by `time.monotonic`, which all processes share.
    started: float = dataclasses.field(default_factory=time.monotonic)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Request:
        fields = json.loads(text)
        plan = Plan(**{key: _tuple(value) for key, value in fields.pop("plan").items()})
        return cls(plan=plan, **fields)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """A process's results."""

    # From the process's start to the end of its first step.
    first_step_seconds: float
    # The segments' median. NaN if not measured, as for the two below.
    train_steps_per_second: float
    eval_examples_per_second: float
    predict_examples_per_second: float
    # Peak resident memory in MiB, and the peak up to the end of training.
    memory_mb: float
    train_memory_mb: float
    segment_rates: tuple[float, ...]
    steps: int
    # On the small number of evaluation batches, after training; shows that the contenders trained the same model.
    eval_loss: float | None
    tensorflow: str
    # From a training's last step to the return of its call, the last checkpoint included.
    train_end_seconds: float = math.nan
    # From the first training call to its complete graph.
    build_seconds: float = math.nan

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Measurement:
        return cls(**{key: _tuple(value) for key, value in json.loads(text).items()})


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
