"""Rounds: every contender once after the other, until the ratios between them are known well enough."""

from __future__ import annotations

import dataclasses
import functools
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.plan import Measurement
from benchmarks.processes import Failed

LEAST = 4
"""Rounds before an interval is meaningful."""

MOST = 12
BUSY = 0.05
"""The share of the machine that other processes may use during a measurement."""

REPEATS = 3
"""Rounds on a busy machine that are repeated; after these they count."""

_TICKS_PER_SECOND = 100


@dataclasses.dataclass(frozen=True)
class Machine:
    """What the machine did while a process was measured.

    Attributes:
        others: The share of its time that was not ours: other processes, and what the hypervisor took.
        mhz: The mean frequency of its processors, where it is told; else 0.
    """

    others: float
    mhz: float


@dataclasses.dataclass(frozen=True)
class Round:
    """One turn of each contender.

    Attributes:
        measured: By contender; those that have failed, now or before, are missing.
        failures: Why those failed that did in this round.
        machine: What the machine did meanwhile, by contender.
    """

    measured: Mapping[str, Measurement]
    failures: Mapping[str, str]
    machine: Mapping[str, Machine]

    @property
    def is_busy(self) -> bool:
        """Whether others took so much of the machine that its numbers say little."""
        return any(machine.others > BUSY for machine in self.machine.values())


def make_rounds(
    contenders: Sequence[str],
    measure: Callable[[str, int], Measurement | Failed],
    *,
    settled: Callable[[Sequence[Round]], bool],
    most: int = MOST,
    watch: Callable[[Callable[[], Any]], tuple[Any, Machine]] | None = None,
) -> list[Round]:
    """Makes rounds until their ratios are settled.

    The contenders take turns, so that what else the machine does meets all of them, and each round
    begins with another one, so that none always follows the same. One that has failed is not tried
    again.

    Args:
        contenders: Their names.
        measure: Measures one, in the round of a number that counts from 0.
        settled: Tells of the rounds that count whether they are enough. Asked from `LEAST` on.
        most: Rounds after which they are enough. Defaults to `MOST`.
        watch: Calls a function and tells what the machine did meanwhile. Defaults to `watched`.

    Returns:
        All rounds, those on a busy machine too: see `counted`.
    """
    watch = watch or watched
    made: list[Round] = []
    failed: set[str] = set()
    while True:
        number = len(made)
        left = [name for name in contenders if name not in failed]
        turn = number % max(1, len(left))
        measured, failures, machines = {}, {}, {}
        for name in (*left[turn:], *left[:turn]):
            found, machines[name] = watch(functools.partial(measure, name, number))
            if isinstance(found, Failed):
                failures[name] = found.reason
            else:
                measured[name] = found
        failed.update(failures)
        made.append(Round(measured, failures, machines))
        counting = counted(made)
        if not measured or len(counting) >= most:
            return made
        if len(counting) >= min(LEAST, most) and settled(counting):
            return made


def counted(rounds: Sequence[Round]) -> list[Round]:
    """Returns the rounds that count: all but the first few on a busy machine.

    Args:
        rounds: Rounds in the order in which they were made.
    """
    counting, repeated = [], 0
    for each in rounds:
        if each.is_busy and repeated < REPEATS:
            repeated += 1
        else:
            counting.append(each)
    return counting


def watched(call: Callable[[], Any]) -> tuple[Any, Machine]:
    """Calls a function, and tells what the machine did meanwhile.

    Args:
        call: The function; the processes that it starts and waits for are ours.

    Returns:
        What it returned, and the machine.
    """
    busy, ours, began = _busy_seconds(), _our_seconds(), time.monotonic()
    found = call()
    seconds = (time.monotonic() - began) * _processors()
    others = (_busy_seconds() - busy) - (_our_seconds() - ours)
    return found, Machine(max(0.0, others) / seconds if seconds else 0.0, _mhz())


def _busy_seconds() -> float:
    """Seconds that all processors have worked, for whomever."""
    line = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0]
    user, nice, system, _idle, _iowait, irq, softirq, stolen, *_ = map(int, line.split()[1:])
    return (user + nice + system + irq + softirq + stolen) / _TICKS_PER_SECOND


def _our_seconds() -> float:
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _processors() -> int:
    lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    return sum(line.startswith("cpu") for line in lines) - 1


def _mhz() -> float:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    told = [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
    return sum(told) / len(told) if told else 0.0
