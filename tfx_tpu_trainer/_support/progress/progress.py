"""A run's progress: its phases and their seconds, and the work of the phase that is under way."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from tfx_tpu_trainer._support.progress.work import Batches, Speed, Steps, phases_in_words

TRACE = "trace"
TRAIN = "train"
EVALUATE = "evaluate"
PREDICT = "predict"

_NEVER = float("inf")


class View(Protocol):
    """Somebody who is shown a run's progress.

    Attributes:
        every_secs: Seconds from one `shown` to the next.
    """

    every_secs: float

    def began(self, phase: str, *, is_told: bool) -> None:
        """Is told that a phase begins, or goes on."""

    def shown(self, phase: str, work: Steps | Batches) -> None:
        """Is shown how far a phase is."""

    def said(self, line: str) -> None:
        """Is told what stays to be read."""

    def close(self) -> None:
        """Is told that the run has ended."""


@dataclasses.dataclass(frozen=True)
class Expected:
    """What somebody above a training knows of it, and its own call does not.

    Attributes:
        last_step: Its last step, where the call makes a part of it. Defaults to `None`: the call's.
        next_evaluation: Returns when the next evaluation is, in words that follow "next evaluation", or `None`.
            Defaults to no evaluation.
    """

    last_step: int | None = None
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
    """How far a run is. Views are shown it at their own pace, and cost nothing in between.

    Attributes:
        seconds: Name of a phase -> the seconds spent in it so far. A phase within another one, such as an
            evaluation while a training waits, is not the other's.
        ran_on: Name of a phase -> where it ran, in words.
    """

    def __init__(
        self,
        views: Sequence[View] = (),
        *,
        expected: Callable[[], Expected] = Expected,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins a run."""
        self.seconds: dict[str, float] = {}
        self.ran_on: dict[str, str] = {}
        self._expected = expected
        self._views = tuple(views)
        self._clock = clock
        self._dues = [_NEVER for _ in self._views]
        self._next_due = _NEVER
        self._phases: list[_Phase] = []
        self._checkpoint: int | None = None
        self._has_said = False

    @property
    def is_watched(self) -> bool:
        """Whether anybody is shown it."""
        return bool(self._views)

    @contextlib.contextmanager
    def phase(self, name: str, *, is_told: bool = False) -> Iterator[None]:
        """Counts the seconds of the block."""
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

    def place(self, words: str) -> None:
        """Takes note of where the phase that is under way runs, such as "4 emulated TPU cores"."""
        self.ran_on[self._phases[-1].name] = words

    def trains(
        self,
        *,
        last: int | None,
        rows_per_step: int | None = None,
        report_every: int | None = None,
        checkpoint: int | None = None,
    ) -> None:
        """Is told what the phase that is under way trains."""
        phase = self._phases[-1]
        phase.last, phase.rows_per_step, phase.report_every = last, rows_per_step, report_every
        if checkpoint is not None:
            self._checkpoint = checkpoint

    def saved(self, step: int) -> None:
        """Is told that there is a checkpoint of a step."""
        self._checkpoint = step

    def is_due(self) -> bool:
        """Tells whether somebody wants to be shown something; to be asked often, and before it costs anything."""
        return self._clock() >= self._next_due

    def trained(self, step: int, loss: Any, *, has_ended: bool = False) -> None:
        """Is told how far the training is."""
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
        """Is told how far an evaluation or a prediction is."""
        phase, now = self._phases[-1], self._clock()
        speed = phase.speed.at(now, done)
        self._show(Batches(done=done, total=total, rows=rows, per_second=speed), now)

    def say(self, line: str) -> None:
        """Says what stays to be read: a result."""
        self._has_said = True
        for view in self._views:
            view.said(line)

    def close(self) -> None:
        """Ends the run: says where it ran, and the seconds of its phases."""
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
        # The first look only sets the speed's first mark.
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
