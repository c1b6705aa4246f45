"""Kills processes at chosen moments, and reports what became of them."""

import collections
import contextlib
import dataclasses
import os
import random
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.chaos.attempt import PHASES, Plan, in_process

# How often a phase is drawn: most of a training's life is training.
_WEIGHTS = {"training": 5, "evaluation": 2, "publishing": 2, "export": 2, "check": 2}

# Evaluations come in between the parts of a training.
_RANKS = {phase: 1 if phase == "evaluation" else PHASES.index(phase) for phase in PHASES}

_WATCH_SECONDS = 0.25


@dataclasses.dataclass(frozen=True)
class Kill:
    """A signal at a moment.

    Attributes:
        phase: The process's phase.
        moment: The progress of the phase, from 0 to 1. A push is killed at its pause.
        signal: SIGKILL or SIGTERM.
    """

    phase: str
    moment: float
    signal: signal.Signals


def draw_kills(drawn: random.Random, count: int, plan: Plan) -> list[Kill]:
    """Draws the kills of one execution, in the order in which they can be made.

    Args:
        drawn: The random generator.
        count: The number of kills.
        plan: The training to kill.
    """
    possible = [phase for phase in PHASES if plan.check or phase != "check"]
    phases = drawn.choices(possible, [_WEIGHTS.get(phase, 1) for phase in possible], k=count)
    kills = [
        Kill(phase, drawn.random(), drawn.choice((signal.SIGKILL, signal.SIGTERM)))
        for phase in phases
    ]
    return sorted(kills, key=lambda kill: _RANKS[kill.phase])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ended:
    """The end of a process.

    Attributes:
        code: Its exit code; that of a signal is negative.
        killed: The kill that ended it, its phase the one that it came in; `None` where it has
            ended by itself.
        left: Kills that were not made.
        seconds: How long each phase took.
        step: The last step that it has made; `None` where it has made none.
        seconds_to_end: Seconds from the kill to the end.
        writes: The writes that the process has reported.
    """

    code: int
    killed: Kill | None
    left: tuple[Kill, ...]
    seconds: Mapping[str, float]
    step: int | None
    seconds_to_end: float
    writes: tuple[str, ...]


def run(
    work: Callable[[], None],
    log: Path,
    *,
    kills: Sequence[Kill] = (),
    seconds: Mapping[str, float],
    watch: Callable[[], None] = lambda: None,
) -> Ended:
    """Runs a process, and kills it at the moment of the next kill.

    Args:
        work: What the process does.
        log: The file for its output.
        kills: The kills to make; those whose phase has passed are dropped. Defaults to none.
        seconds: The duration of each phase without kills.
        watch: Called again and again while the process runs. Defaults to nothing.

    Returns:
        Its end.
    """
    reading, writing = os.pipe()
    process = in_process(work, log, writing)
    os.close(writing)
    followed = _Followed(process, list(kills), seconds)
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while True:
            if select.select([pipe], [], [], followed.seconds_to_wait())[0]:
                text = pipe.read(65536)
                if not text:
                    break
                followed.read(text)
            else:
                watch()
            followed.kill_if_due()
    _, status = os.waitpid(process, 0)
    # Processes that check an export outlive it, except in a container.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    return followed.ended(os.waitstatus_to_exitcode(status))


class _Followed:
    """A process that reports."""

    def __init__(self, process: int, kills: list[Kill], seconds: Mapping[str, float]) -> None:
        self._process = process
        self._kills = kills
        self._usual = seconds
        self._phase = PHASES[0]
        self._since = time.monotonic()
        self._spent: collections.Counter[str] = collections.Counter()
        self._rest = b""
        self._step: int | None = None
        self._writes: list[str] = []
        self._paused = False
        self._made: Kill | None = None
        self._made_at = 0.0

    def read(self, text: bytes) -> None:
        *lines, self._rest = (self._rest + text).split(b"\n")
        for line in lines:
            kind, value = line.decode().split()
            if kind == "step":
                self._step = int(value)
                continue
            if kind == "write":
                self._writes.append(value)
                continue
            if kind == "paused":
                self._paused = True
                continue
            now = time.monotonic()
            self._spent[self._phase] += now - self._since
            self._phase, self._since = value, now

    def seconds_to_wait(self) -> float:
        due = self._due_in()
        return _WATCH_SECONDS if due is None else max(0.0, min(due, _WATCH_SECONDS))

    def kill_if_due(self) -> None:
        due = self._due_in()
        if due is None or due > 0:
            return
        kill = self._next()
        assert kill is not None
        self._kills.remove(kill)
        self._made = kill
        self._made_at = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process, kill.signal)
            # What is stopped would see SIGTERM only then.
            os.kill(self._process, signal.SIGCONT)

    def ended(self, code: int) -> Ended:
        now = time.monotonic()
        self._spent[self._phase] += now - self._since
        by_kill = self._made is not None and code in (-self._made.signal, 128 + self._made.signal)
        return Ended(
            code=code,
            killed=self._made if by_kill else None,
            left=tuple(self._kills),
            seconds=dict(self._spent),
            step=self._step,
            seconds_to_end=now - self._made_at if self._made else 0.0,
            writes=tuple(self._writes),
        )

    def _next(self) -> Kill | None:
        """Returns the kill of this phase; drops those of phases that have passed."""
        rank = _RANKS[self._phase]
        while self._kills and _RANKS[self._kills[0].phase] < rank:
            self._kills.pop(0)
        of_this = [kill for kill in self._kills if kill.phase == self._phase]
        return of_this[0] if of_this else None

    def _due_in(self) -> float | None:
        if self._made is not None:
            return None
        kill = self._next()
        if kill is None:
            return None
        if kill.phase == "push":
            return 0.0 if self._paused else None
        spent = self._spent[self._phase] + time.monotonic() - self._since
        return kill.moment * self._usual.get(self._phase, 1.0) - spent
