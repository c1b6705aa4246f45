"""Makes rounds, in which every contender takes its turns, until their ratios are precise enough."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import resource
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import psutil

from benchmarks.plan import Measurement
from benchmarks.processes import Failed

LEAST = 4
"""Rounds before an interval is meaningful."""

MOST = 12
BUSY = 0.05
"""The share of the machine that other processes may use during a measurement."""

REPEATS = 3
"""Rounds on a busy machine that are repeated; after these they count."""

Turns = Generator[Measurement | Failed | None, None, None]
"""One contender in one round: each step is a turn; the last returns the results."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """The machine's state during a process's turn."""

    # The share of processor time that other processes and the hypervisor took.
    others: float
    # The processors' mean frequency, if known; else 0.
    mhz: float
    seconds: float = 0.0

    @classmethod
    def over(cls, turns: Sequence[Machine]) -> Machine:
        """Combines several turns."""
        seconds = sum(turn.seconds for turn in turns)
        if not seconds:
            return turns[-1]
        return cls(
            sum(turn.others * turn.seconds for turn in turns) / seconds,
            sum(turn.mhz * turn.seconds for turn in turns) / seconds,
            seconds,
        )


@dataclasses.dataclass(frozen=True)
class Round:
    """The turns of each contender."""

    # By contender, like all three; failed ones are missing.
    measured: Mapping[str, Measurement]
    failures: Mapping[str, str]
    machine: Mapping[str, Machine]

    @property
    def is_busy(self) -> bool:
        """Whether other processes took too much of the machine for the numbers to count."""
        return any(machine.others > BUSY for machine in self.machine.values())


def make_rounds(
    contenders: Sequence[str],
    start: Callable[[str, int], Turns],
    *,
    settled: Callable[[Sequence[Round]], bool],
    together: bool = True,
    most: int = MOST,
    watch: Callable[[Callable[[], Any]], tuple[Any, Machine]] | None = None,
) -> list[Round]:
    """Makes rounds until their ratios are settled.

    The contenders take turns, so other load on the machine affects all of them, and each round begins with another
    one, so none always follows the same. A contender that has failed is not tried again.
    """
    made: list[Round] = []
    failed: set[str] = set()
    while True:
        number = len(made)
        left = [name for name in contenders if name not in failed]
        first = number % max(1, len(left))
        order = [*left[first:], *left[:first]]
        found: dict[str, Measurement | Failed] = {}
        machines: dict[str, Machine] = {}
        for group in [order] if together else [[name] for name in order]:
            turns = {name: start(name, number) for name in group}
            for name, (result, machine) in _taken(turns, watch or watched).items():
                found[name], machines[name] = result, machine
        measured = {name: each for name, each in found.items() if isinstance(each, Measurement)}
        failures = {name: each.reason for name, each in found.items() if isinstance(each, Failed)}
        failed.update(failures)
        made.append(Round(measured, failures, machines))
        counting = counted(made)
        if not measured or len(counting) >= most:
            return made
        if len(counting) >= min(LEAST, most) and settled(counting):
            return made


def _taken(
    turns: Mapping[str, Turns], watch: Callable[[Callable[[], Any]], tuple[Any, Machine]]
) -> dict[str, tuple[Measurement | Failed, Machine]]:
    """Runs contenders turn by turn until each has finished."""
    found: dict[str, Measurement | Failed] = {}
    machines: dict[str, list[Machine]] = {name: [] for name in turns}
    with contextlib.ExitStack() as stack:
        for each in turns.values():
            stack.enter_context(contextlib.closing(each))
        while len(found) < len(turns):
            for name in [name for name in turns if name not in found]:
                result, machine = watch(functools.partial(next, turns[name]))
                machines[name].append(machine)
                if result is not None:
                    found[name] = result
    return {name: (found[name], Machine.over(machines[name])) for name in turns}


def counted(rounds: Sequence[Round]) -> list[Round]:
    """Returns the rounds that count: all except the first few on a busy machine."""
    counting, repeated = [], 0
    for each in rounds:
        if each.is_busy and repeated < REPEATS:
            repeated += 1
        else:
            counting.append(each)
    return counting


def watched(call: Callable[[], Any]) -> tuple[Any, Machine]:
    """Calls a function, and returns the machine's state during the call."""
    busy, ours, began = _busy_seconds(), _our_seconds(), time.monotonic()
    found = call()
    seconds = time.monotonic() - began
    of_all = seconds * (psutil.cpu_count() or 1)
    others = (_busy_seconds() - busy) - (_our_seconds() - ours)
    return found, Machine(max(0.0, others) / of_all if of_all else 0.0, _mhz(), seconds)


def _busy_seconds() -> float:
    """Returns the seconds that all processors worked, for any process."""
    spent = psutil.cpu_times()
    return sum((spent.user, spent.nice, spent.system, spent.irq, spent.softirq, spent.steal))


def _our_seconds() -> float:
    """Returns the processor seconds of this process and its children, running or ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    seconds = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    for process in psutil.Process().children(recursive=True):
        # The kernel adds a child's time to its parent's when it is waited for.
        with contextlib.suppress(psutil.Error):
            seconds += sum(process.cpu_times()[:4])
    return seconds


def _mhz() -> float:
    frequency = psutil.cpu_freq()
    return frequency.current if frequency else 0.0
