"""What is known of a training or an evaluation that is under way, and how that is said."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping

_WINDOW_SECONDS = 20.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Steps:
    """How far a training is.

    Attributes:
        reached: Global step.
        last: Global step at which it ends; `None` where its input or a hook ends it.
        loss: Loss of the step reached; `None` before the first.
        per_second: Steps in a second, of the last 20 seconds; `None` where that is not known yet.
        rows_per_step: Rows of a step over all replicas; `None` where nobody has said.
        checkpoint: Global step of the last checkpoint; `None` if there is none.
        next_evaluation: When the next evaluation is, in words that follow "next evaluation".
        report_every: Steps from one log line to the next, at least.
    """

    reached: int
    last: int | None = None
    loss: float | None = None
    per_second: float | None = None
    rows_per_step: int | None = None
    checkpoint: int | None = None
    next_evaluation: str | None = None
    report_every: int | None = None

    @property
    def examples_per_second(self) -> float | None:
        """Rows in a second over all replicas."""
        if self.per_second is None or self.rows_per_step is None:
            return None
        return self.per_second * self.rows_per_step

    @property
    def share(self) -> float | None:
        """The part that is done, from 0 to 1."""
        return min(1.0, self.reached / self.last) if self.last else None

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the last step at the speed of now; `None` if there is none, or none left."""
        if self.last is None or not self.per_second or self.reached >= self.last:
            return None
        return (self.last - self.reached) / self.per_second

    def count(self) -> str:
        """Returns the steps: "step 500 of 5,000 (10 %)"."""
        if self.last is None or self.share is None:
            return f"step {self.reached:,}"
        return f"step {self.reached:,} of {self.last:,} ({int(100 * self.share)} %)"

    def details(self) -> list[str]:
        """Returns what else is known, each part in words."""
        parts = []
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4g}")
        if self.per_second is not None:
            parts.append(f"{_rate(self.per_second)} steps/s")
        if self.examples_per_second is not None:
            parts.append(f"{_rate(self.examples_per_second)} examples/s")
        if self.seconds_left is not None:
            parts.append(f"{duration(self.seconds_left)} left")
        if self.checkpoint is not None:
            parts.append(f"checkpoint at step {self.checkpoint:,}")
        if self.next_evaluation is not None:
            parts.append(f"next evaluation {self.next_evaluation}")
        return parts

    def __str__(self) -> str:
        """All of it in one line."""
        return ", ".join([self.count(), *self.details()])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batches:
    """How far an evaluation or a prediction is.

    Attributes:
        done: Batches.
        total: Batches asked for; `None` goes to the end of the input.
        rows: Rows; `None` or 0 where they are not counted.
        per_second: Batches in a second; `None` where that is not known yet.
    """

    done: int
    total: int | None = None
    rows: int | None = None
    per_second: float | None = None

    @property
    def share(self) -> float | None:
        """The part that is done, from 0 to 1; `None` if unknown."""
        return min(1.0, self.done / self.total) if self.total else None

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the last batch at the speed of now; `None` if there is none, or none left."""
        if self.total is None or not self.per_second or self.done >= self.total:
            return None
        return (self.total - self.done) / self.per_second

    def count(self) -> str:
        """Returns the batches: "37 of 100 batches"."""
        if self.total is not None:
            return f"{self.done:,} of {self.total:,} batches"
        return f"{self.done:,} batch{'' if self.done == 1 else 'es'}"

    def details(self) -> list[str]:
        """Returns what else is known, each part in words."""
        parts = []
        if self.rows:
            parts.append(f"{self.rows:,} rows")
        if self.seconds_left is not None:
            parts.append(f"{duration(self.seconds_left)} left")
        return parts

    def __str__(self) -> str:
        """All of it in one line."""
        return ", ".join([self.count(), *self.details()])


class Speed:
    """How fast something counts, over the last 20 seconds."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()

    def at(self, now: float, count: int) -> float | None:
        """Takes note of a count, and returns how many come in a second."""
        self._marks.append((now, count))
        while len(self._marks) > 2 and now - self._marks[0][0] > _WINDOW_SECONDS:
            self._marks.popleft()
        since, first = self._marks[0]
        return (count - first) / (now - since) if now > since and count > first else None

    def pause(self, seconds: float) -> None:
        """Leaves out some time in which something else was done."""
        self._marks = deque((time + seconds, count) for time, count in self._marks)


def duration(seconds: float) -> str:
    """Returns seconds in words: "14 s", "3 min 20 s", "2 h 5 min"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def phases_in_words(seconds: Mapping[str, float]) -> str:
    """Returns phases with their seconds: "trace 0.8 s, train 15.3 s"."""
    return ", ".join(f"{name} {spent:,.1f} s" for name, spent in seconds.items())


def _rate(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
