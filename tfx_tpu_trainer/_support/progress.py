"""Tracks a run's progress: its phases with their seconds, the work of the current phase, and its views.

The views are in `progress_views.py` and `progress_bar.py`: log lines, a file for a runner, bars on a terminal or in a
notebook. Nothing here imports TensorFlow, and nothing is computed for display.
"""

import contextlib
import dataclasses
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

TRACE = "trace"
TRAIN = "train"
EVALUATE = "evaluate"
PREDICT = "predict"
REST = "rest"

_NEVER = float("inf")
_WINDOW_SECONDS = 20.0

MODES = ("auto", "bar", "log", "off")
"""How progress is shown: depending on standard error, as bars, as log lines, or not at all."""

_innermost = threading.local()


class _Work:
    """Work counted towards an end that may be unknown."""

    per_second: float | None

    @property
    def _done_of(self) -> tuple[int, int | None]:
        raise NotImplementedError

    @property
    def share(self) -> float | None:
        """The finished fraction, from 0 to 1; `None` if unknown."""
        done, total = self._done_of
        return min(1.0, done / total) if total else None

    @property
    def seconds_left(self) -> float | None:
        """Seconds left at the current speed; `None` if there is no end, or none left."""
        done, total = self._done_of
        if total is None or not self.per_second or done >= total:
            return None
        return (total - done) / self.per_second

    def count(self) -> str:
        """Formats the count."""
        raise NotImplementedError

    def details(self) -> list[str]:
        """Formats further facts, one text each."""
        raise NotImplementedError

    def __str__(self) -> str:
        """The whole progress in one line."""
        return ", ".join([self.count(), *self.details()])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Steps(_Work):
    """Progress of a training."""

    # Global steps: reached, and at the end; None if the input or a hook ends it.
    reached: int
    last: int | None = None
    # At the reached step.
    loss: float | None = None
    # Steps per second, over the last 20 seconds.
    per_second: float | None = None
    # Over all replicas.
    rows_per_step: int | None = None
    # Global step of the last checkpoint.
    checkpoint: int | None = None
    # Words to follow "next evaluation".
    next_evaluation: str | None = None
    # The smallest number of steps between log lines.
    report_every: int | None = None

    @property
    def _done_of(self) -> tuple[int, int | None]:
        return self.reached, self.last

    @property
    def examples_per_second(self) -> float | None:
        """Rows per second over all replicas."""
        if self.per_second is None or self.rows_per_step is None:
            return None
        return self.per_second * self.rows_per_step

    def count(self) -> str:
        """Formats the steps: "step 500 of 5,000 (10 %)"."""
        if self.share is None:
            return f"step {self.reached:,}"
        return f"step {self.reached:,} of {self.last:,} ({int(100 * self.share)} %)"

    def details(self) -> list[str]:
        """Formats further facts, one text each."""
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batches(_Work):
    """Progress of an evaluation or a prediction."""

    done: int
    # None reads the input to its end.
    total: int | None = None
    # None or 0 if not counted.
    rows: int | None = None
    # Batches per second.
    per_second: float | None = None

    @property
    def _done_of(self) -> tuple[int, int | None]:
        return self.done, self.total

    def count(self) -> str:
        """Formats the batches: "37 of 100 batches"."""
        if self.total is not None:
            return f"{self.done:,} of {self.total:,} batches"
        return f"{self.done:,} batch{'' if self.done == 1 else 'es'}"

    def details(self) -> list[str]:
        """Formats further facts, one text each."""
        parts = [f"{self.rows:,} rows"] if self.rows else []
        if self.seconds_left is not None:
            parts.append(f"{duration(self.seconds_left)} left")
        return parts


class Speed:
    """Measures the speed of a counter over the last 20 seconds."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()

    def at(self, now: float, count: int) -> float | None:
        """Records a count, and returns the increase per second."""
        self._marks.append((now, count))
        while len(self._marks) > 2 and now - self._marks[0][0] > _WINDOW_SECONDS:
            self._marks.popleft()
        since, first = self._marks[0]
        return (count - first) / (now - since) if now > since and count > first else None

    def pause(self, seconds: float) -> None:
        """Excludes time spent on something else."""
        self._marks = deque((time + seconds, count) for time, count in self._marks)


def duration(seconds: float) -> str:
    """Formats seconds: "14 s", "3 min 20 s", "2 h 5 min"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def phases_in_words(seconds: Mapping[str, float]) -> str:
    """Formats phases with their seconds: "trace 0.8 s, train 15.3 s"."""
    return ", ".join(f"{name} {spent:,.1f} s" for name, spent in seconds.items())


def _rate(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


class View(Protocol):
    """A display of a run's progress."""

    # Seconds between calls of `shown`.
    every_secs: float

    def began(self, phase: str, *, is_told: bool) -> None:
        """Called when a phase begins or resumes."""

    def shown(self, phase: str, work: Steps | Batches) -> None:
        """Called with the phase's progress."""

    def said(self, line: str) -> None:
        """Called with a message to keep."""

    def close(self) -> None:
        """Called when the run has ended."""


@dataclasses.dataclass(frozen=True)
class Expected:
    """Facts about a training that its own call does not know."""

    # The training's last step, if the call runs only a part of it; None uses the call's.
    last_step: int | None = None
    # Returns the words to follow "next evaluation".
    next_evaluation: Callable[[], str | None] = lambda: None


@dataclasses.dataclass
class _Phase:
    name: str
    resumed: float
    last: int | None = None
    rows_per_step: int | None = None
    report_every: int | None = None
    speed: Speed = dataclasses.field(default_factory=Speed)


class Progress:
    """A run's progress. Views are updated at their own pace, without cost in between."""

    def __init__(
        self,
        views: Sequence[View] = (),
        *,
        expected: Callable[[], Expected] = Expected,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # Phase -> seconds spent in it, excluding nested phases such as an evaluation during a training.
        self.seconds: dict[str, float] = {}
        # Phase -> where it ran, in words.
        self.ran_on: dict[str, str] = {}
        self._expected = expected
        self._views = tuple(views)
        self._clock = clock
        self._created = clock()
        self._dues = [_NEVER for _ in self._views]
        self._next_due = _NEVER
        self._phases: list[_Phase] = []
        self._checkpoint: int | None = None
        self._has_said = False

    @property
    def is_watched(self) -> bool:
        """Whether there is any view."""
        return bool(self._views)

    @contextlib.contextmanager
    def phase(self, name: str, *, is_told: bool = False) -> Iterator[None]:
        """Counts the block's seconds."""
        # Phases nest: an evaluation begins while a training waits for it. The seconds so far go to the outer phase,
        # which resumes at the end of the inner one, so every second counts for the innermost phase only. The outer
        # phase's speed excludes the pause, so an evaluation does not look like slow steps.
        began = self._clock()
        self._count_until(began)
        self._phases.append(_Phase(name, began))
        self._begin(is_told)
        try:
            yield
        finally:
            ended = self._clock()
            self._count_until(ended)
            self._phases.pop()
            if self._phases:
                outer = self._phases[-1]
                outer.resumed = ended
                outer.speed.pause(ended - began)
                self._begin(is_told=False)

    def breakdown(self) -> dict[str, float]:
        """Returns phase -> seconds of all the time since the run began, with the time outside of phases as "rest"."""
        now = self._clock()
        self._count_until(now)
        return {**self.seconds, REST: now - self._created - sum(self.seconds.values())}

    def place(self, words: str) -> None:
        """Records where the current phase runs, such as "4 emulated TPU cores"."""
        self.ran_on[self._phases[-1].name] = words

    def trains(
        self,
        *,
        last: int | None,
        rows_per_step: int | None = None,
        report_every: int | None = None,
        checkpoint: int | None = None,
    ) -> None:
        """Records the work of the current phase."""
        phase = self._phases[-1]
        phase.last, phase.rows_per_step, phase.report_every = last, rows_per_step, report_every
        if checkpoint is not None:
            self._checkpoint = checkpoint

    def saved(self, step: int) -> None:
        """Records a checkpoint's step."""
        self._checkpoint = step

    def is_due(self) -> bool:
        """Returns whether a view wants an update; cheap enough to be called often."""
        return self._clock() >= self._next_due

    def trained(self, step: int, loss: Any, *, has_ended: bool = False) -> None:
        """Records the training's progress."""
        phase, now, expected = self._phases[-1], self._clock(), self._expected()
        steps = Steps(
            reached=step,
            last=expected.last_step or phase.last,
            loss=None if loss is None else float(loss),
            per_second=phase.speed.at(now, step),
            rows_per_step=phase.rows_per_step,
            checkpoint=self._checkpoint,
            next_evaluation=None if has_ended else expected.next_evaluation(),
            report_every=phase.report_every,
        )
        if has_ended:
            self.say(f"{phase.name}: {steps}")
        else:
            self._show(steps, now)

    def counted(
        self,
        done: int,
        *,
        total: int | None = None,
        rows: int | None = None,
    ) -> None:
        """Records the progress of an evaluation or prediction."""
        phase, now = self._phases[-1], self._clock()
        speed = phase.speed.at(now, done)
        self._show(Batches(done=done, total=total, rows=rows, per_second=speed), now)

    def say(self, line: str) -> None:
        """Passes a result to the views, to be kept."""
        self._has_said = True
        for view in self._views:
            view.said(line)

    def close(self) -> None:
        """Ends the run: reports where it ran, and its phases' seconds."""
        if self._has_said and self.seconds:
            places = dict.fromkeys(self.ran_on.values())
            where = f"Ran on {' and '.join(places)}" if places else "Ran"
            self.say(f"{where}: {phases_in_words(self.seconds)}.")
        for view in self._views:
            view.close()

    def _begin(self, is_told: bool) -> None:
        for view in self._views:
            view.began(self._phases[-1].name, is_told=is_told)
        now = self._clock()
        # The first update only starts the speed's clock.
        self._dues = [now for _ in self._views]
        self._next_due = min(self._dues, default=_NEVER)

    def _count_until(self, now: float) -> None:
        if self._phases:
            phase = self._phases[-1]
            self.seconds[phase.name] = self.seconds.get(phase.name, 0.0) + now - phase.resumed
            phase.resumed = now

    def _show(self, work: Steps | Batches, now: float) -> None:
        for number, view in enumerate(self._views):
            if now >= self._dues[number]:
                view.shown(self._phases[-1].name, work)
                self._dues[number] = now + view.every_secs
        self._next_due = min(self._dues, default=_NEVER)


def current() -> Progress | None:
    """Returns the progress that this thread's call belongs to; `None` if there is none."""
    return getattr(_innermost, "progress", None)


@contextlib.contextmanager
def followed(mode: str | None, *, may_draw: bool = True) -> Iterator[Progress]:
    """Tracks the block, as a part of an enclosing tracked block if there is one."""
    outer = current()
    if outer is not None:
        yield outer
        return
    progress = Progress(_views(mode or "off", may_draw=may_draw), expected=_expected)
    _innermost.progress = progress
    try:
        yield progress
    finally:
        _innermost.progress = None
        progress.close()


@contextlib.contextmanager
def expecting(
    *,
    last_step: int | None = None,
    next_evaluation: Callable[[], str | None] = lambda: None,
) -> Iterator[None]:
    """Provides facts about the training that the block's calls are part of; see `Expected`."""
    outer = _expected()
    _innermost.expected = Expected(last_step, next_evaluation)
    try:
        yield
    finally:
        _innermost.expected = outer


def unfollowed(mode: str | None, *, may_draw: bool = True) -> Progress:
    """Returns the progress of an interruptible call, such as a generator of rows.

    Nothing of it stays on a terminal between two lines. Within a tracked block it is not shown.
    """
    if current() is not None or mode in (None, "off"):
        return Progress()
    from tfx_tpu_trainer._support.progress_views import LogView

    if mode != "log" and may_draw:
        from tfx_tpu_trainer._support.progress_bar import terminal

        if (console := terminal(is_forced=mode == "bar")) is not None:
            return Progress([LogView(console.print)])
    return Progress([LogView()])


@contextlib.contextmanager
def phase(name: str, *, is_told: bool = True) -> Iterator[None]:
    """Counts the block's seconds if its progress is tracked, and logs its beginning unless told otherwise."""
    progress = current()
    with contextlib.nullcontext() if progress is None else progress.phase(name, is_told=is_told):
        yield


def _expected() -> Expected:
    return getattr(_innermost, "expected", None) or Expected()


def _views(mode: str, *, may_draw: bool) -> list[View]:
    if mode == "off":
        return []
    from tfx_tpu_trainer._support.progress_views import STATUS_VARIABLE, LogView, StatusFile

    views: list[View] = []
    if path := os.environ.get(STATUS_VARIABLE):
        views.append(StatusFile(path))
    if mode != "log" and may_draw:
        # Rich is imported only if there is something to draw.
        from tfx_tpu_trainer._support.progress_bar import bar_view

        bar = bar_view(is_forced=mode == "bar")
        if bar is not None:
            return [*views, bar]
    return [*views, LogView()]
