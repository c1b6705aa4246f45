"""Runs the kill sweep: `python -m tests.chaos.run --kills 100 --pauses 10 --seed 1`.

Trainings are killed at random moments and started again with the same command until they end well; then what they
have left is compared with what the same training leaves alone. After that, pairs of attempts at one training.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import gc
import itertools
import json
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.chaos import checks, data, killing
from tests.chaos.attempt import PHASES, Plan, in_process, push, train
from tests.chaos.checks import Ending
from tests.chaos.killing import Ended, Kill
from tests.chaos.two_attempts import older_and_newer, training

_SIGNALS = (signal.SIGKILL, signal.SIGTERM)

# More than any training of the sweep needs: so many without an end are a defect.
_ATTEMPTS = 100


@dataclasses.dataclass
class Tally:
    """The results of a sweep.

    Attributes:
        kills: Kills made, by "phase signal".
        restarts: Attempts after a kill.
        manual_steps: Attempts that failed by themselves, so a person would have to act.
        trainings: Trainings that ended well, with their pushes.
        equal: Those of them that left what the uninterrupted one left, to the last bit.
        rows_equal: Those that saw the same rows in each epoch.
        half_written: Files seen that bore their name and were not whole.
        sigterm_steps_lost: SIGTERMs in training, by the steps that had to be made again.
        sigkill_steps_lost: The most steps that a SIGKILL cost.
        sigterm_seconds: The longest time from a SIGTERM to the end of the process.
        unfinished_versions: Version folders without a model, which a killed Pusher of TFX has left.
        pauses: Older attempts that were paused at a write until a newer one was paused or had ended.
        newer_as_alone: Those of them whose newer one left what it would have left alone, and that
            ended by themselves and said so.
        problems: A line for each promise that was broken.
    """

    kills: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    restarts: int = 0
    manual_steps: int = 0
    trainings: int = 0
    equal: int = 0
    rows_equal: int = 0
    half_written: int = 0
    sigterm_steps_lost: collections.Counter[int] = dataclasses.field(
        default_factory=collections.Counter
    )
    sigkill_steps_lost: int = 0
    sigterm_seconds: float = 0.0
    unfinished_versions: int = 0
    pauses: int = 0
    newer_as_alone: int = 0
    problems: list[str] = dataclasses.field(default_factory=list)

    def __add__(self, other: Tally) -> Tally:
        """Returns the sum of two sweeps' results."""
        longest = ("sigkill_steps_lost", "sigterm_seconds")
        return Tally(
            **{
                name: max(mine, others) if name in longest else mine + others
                for name, mine, others in (
                    (field.name, getattr(self, field.name), getattr(other, field.name))
                    for field in dataclasses.fields(self)
                )
            }
        )

    def lines(self) -> Iterator[str]:
        """Yields the lines to print at the end."""
        yield f"{'kills made':12}" + "".join(f"{number.name:>9}" for number in _SIGNALS)
        for phase in PHASES:
            made = [self.kills[f"{phase} {number.name}"] for number in _SIGNALS]
            yield f"  {phase:10}" + "".join(f"{count:9}" for count in made)
        yield f"  {'all':10}{self.kills.total():9}"
        yield f"restarts: {self.restarts}; manual steps: {self.manual_steps}"
        yield (
            f"trainings that ended: {self.trainings}; equal to the uninterrupted one, to the last bit: "
            f"{self.equal}; with the same rows in each epoch: {self.rows_equal}"
        )
        yield f"half-written artifacts seen: {self.half_written}"
        lost = ", ".join(f"{n} ({c} times)" for n, c in sorted(self.sigterm_steps_lost.items()))
        yield (
            f"steps lost after SIGTERM in training: {lost or 'there was none'}, ended within "
            f"{self.sigterm_seconds:.1f} s; at most after SIGKILL: {self.sigkill_steps_lost}"
        )
        if self.unfinished_versions:
            yield f"version folders without a model, left by TFX's Pusher: {self.unfinished_versions}"
        yield (
            f"two attempts at once, the older one paused at a write: {self.pauses}; the newer one's "
            f"files as if it had been alone: {self.newer_as_alone}"
        )
        yield from self.problems


class Execution:
    """A training and the push of its model, started again after each kill.

    The artifacts of all attempts have the same URIs, as when Kubernetes restarts a pod, or each attempt has its own, as
    with an orchestrator.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        tally: Tally,
        *,
        same_uris: bool = True,
        counts_writes: bool = False,
    ) -> None:
        self._plan, self._folder, self._tally = plan, folder, tally
        self._same_uris, self._counts_writes = same_uris, counts_writes
        self._checkpoints, self._destination = folder / "checkpoints", folder / "pushed"
        self._log = folder / "log.txt"
        self._attempts = 0
        self.seconds: dict[str, float] = {}
        """How long each phase of the last attempts took."""
        self.writes: dict[str, int] = {}
        """How many writes the last attempt of each component has made; a trainer's where they are counted."""
        folder.mkdir(parents=True)

    def run(
        self, kills: Sequence[Kill], alone: Execution | None = None, *, most: int = 0
    ) -> Ending | None:
        """Runs both components to their ends.

        Args:
            kills: The kills, in order; those whose moment does not come are not made.
            alone: The uninterrupted execution, for the duration of each phase. Defaults to `None`: this one is
                uninterrupted.
            most: The most kills to make. Defaults to 0.

        Returns:
            The results at the end; `None` if an attempt failed by itself.
        """
        outputs, left = self._folder, tuple(kills)
        seconds = alone.seconds if alone else {}
        for component in ("trainer", "pusher"):
            ended = None
            while ended is None or ended.killed:
                self._attempts += 1
                if component == "trainer":
                    outputs = self._outputs()
                    work = functools.partial(train, self._plan, outputs, self._checkpoints)
                    if self._counts_writes:
                        work = functools.partial(training, self._plan, self._folder)
                else:
                    moments = [kill.moment for kill in left if kill.phase == "push"]
                    pause_at = (
                        1 + int(moments[0] * alone.writes["pusher"]) if alone and moments else None
                    )
                    work = functools.partial(push, outputs, self._destination, pause_at=pause_at)
                look = functools.partial(self._look_for_halves, is_pushing=component == "pusher")
                ended = killing.run(work, self._log, kills=left, seconds=seconds, watch=look)
                left = ended.left
                if ended.killed:
                    self._count(ended)
                    most -= 1
                    left = left if most else ()
                look(thorough=True)
                if component == "pusher":
                    # It names versions by the second and takes a folder of this second for its own.
                    time.sleep(1)
                if self._attempts > _ATTEMPTS:
                    self.problem(f"has not ended after {_ATTEMPTS} attempts")
                    return None
            if ended.code:
                self._tally.manual_steps += 1
                self.problem(f"the {component} ended with {ended.code} by itself")
                return None
            # The pusher's own preparation takes no time.
            self.seconds = {**ended.seconds, **self.seconds}
            self.writes[component] = len(ended.writes)
        self._look_for_halves(thorough=True)
        unfinished = [v for v in self._destination.iterdir() if not (v / "saved_model.pb").exists()]
        self._tally.unfinished_versions += len(unfinished)
        return Ending.read(outputs, self._checkpoints, self._destination)

    def problem(self, text: str) -> None:
        """Records a broken promise; the folder is then kept for inspection."""
        self._tally.problems.append(f"{self._folder}: {text}")

    def _outputs(self) -> Path:
        return self._folder / ("outputs" if self._same_uris else f"outputs-{self._attempts}")

    def _count(self, ended: Ended) -> None:
        tally, kill = self._tally, ended.killed
        assert kill is not None
        tally.kills[f"{kill.phase} {kill.signal.name}"] += 1
        tally.restarts += 1
        if kill.signal == signal.SIGTERM:
            tally.sigterm_seconds = max(tally.sigterm_seconds, ended.seconds_to_end)
        found = checks.latest_checkpoint(self._checkpoints)
        if found is None or kill.phase not in ("training", "evaluation"):
            return
        step = int(found.rpartition("-")[2])
        values = checks.read_values(Path(f"{found}.index"))
        if trouble := checks.rows_problem(values, self._plan, step):
            self.problem(f"checkpoint of step {step}: {trouble}")
        lost = 0 if ended.step is None else ended.step - step
        if kill.signal == signal.SIGKILL:
            tally.sigkill_steps_lost = max(tally.sigkill_steps_lost, lost)
            return
        tally.sigterm_steps_lost[lost] += 1
        if lost > self._plan.loop:
            self.problem(f"SIGTERM at step {ended.step} left the checkpoint of step {step}")

    def _look_for_halves(self, *, thorough: bool = False, is_pushing: bool = False) -> None:
        found = checks.half_written(self._folder, thorough=thorough, is_pushing=is_pushing)
        for line in found:
            self._tally.half_written += 1
            self.problem(f"half-written: {line}")


class Sweep:
    """Executions of some plans, in turn, until there were enough kills; then pairs of attempts."""

    def __init__(
        self, plans: Sequence[Plan], folder: Path, *, seed: int, job: int = 0, jobs: int = 1
    ) -> None:
        self._plans, self._folder = plans, folder
        self._job, self._jobs = job, jobs
        self._drawn = random.Random(seed if jobs == 1 else f"{seed}/{job}")
        self.tally = Tally()

    def run(self, kills: int, pauses: int | None) -> None:
        """Makes its share of a number of kills, and of pauses of the quickest plan.

        Args:
            kills: The number for all jobs.
            pauses: The number for all jobs; `None` pauses at each write.
        """
        kills = len(range(self._job, kills, self._jobs))
        left_alone: dict[Plan, tuple[Ending, Execution]] = {}
        for number, plan in enumerate(itertools.cycle(self._plans)):
            if plan not in left_alone:
                left_alone[plan] = self._left_alone(plan)
            missing = kills - self.tally.kills.total()
            if missing <= 0 or len(self.tally.problems) > 10:
                break
            self._killed(number, plan, *left_alone[plan], most=missing)
        plan, (expected, alone) = min(
            left_alone.items(), key=lambda item: sum(item[1][1].seconds.values())
        )
        expected = dataclasses.replace(expected, pushed={})
        writes = range(1, alone.writes["trainer"] + 1)
        if pauses is None:
            chosen = list(writes)[self._job :: self._jobs]
        else:
            chosen = self._drawn.sample(writes, len(range(self._job, pauses, self._jobs)))
        for number in chosen:
            newers = self._drawn.choice((None, self._drawn.choice(writes)))
            self._paused((number, newers), plan, expected)

    def _left_alone(self, plan: Plan) -> tuple[Ending, Execution]:
        folder = self._folder / f"{plan.model}-{plan.place}"
        alone = Execution(plan, folder, Tally(), counts_writes=True)
        ending = alone.run([])
        if ending is None:
            raise SystemExit(f"A training that nobody kills fails: see {folder}/log.txt")
        _say(f"{plan.model} on {plan.place}, left alone: {sum(alone.seconds.values()):.0f} s")
        return ending, alone

    def _paused(self, writes: tuple[int, int | None], plan: Plan, expected: Ending) -> None:
        folder = self._folder / f"paused-at-{'-'.join(map(str, writes))}"
        problems = older_and_newer(plan, folder, writes, expected)
        self.tally.pauses += 1
        self.tally.newer_as_alone += not problems
        self.tally.problems += [f"{folder}: {line}" for line in problems]
        _say(f"{folder.name}: {problems or 'the newer one as if it had been alone'}")
        if not problems:
            shutil.rmtree(folder)

    def _killed(
        self, number: int, plan: Plan, expected: Ending, alone: Execution, *, most: int
    ) -> None:
        tally, began = self.tally, time.monotonic()
        problems, kills_before = len(tally.problems), tally.kills.total()
        folder = self._folder / f"{number}-{plan.model}-{plan.place}"
        execution = Execution(plan, folder, tally, same_uris=self._drawn.random() < 0.5)
        kills = killing.draw_kills(self._drawn, self._drawn.randint(4, 40), plan)
        ending = execution.run(kills, alone, most=most)
        if ending is not None:
            tally.trainings += 1
            differences = ending.differences(expected)
            for line in (*differences, *(f"left over: {name}" for name in ending.leftovers)):
                execution.problem(line)
            tally.equal += not differences
            trouble = checks.rows_problem(ending.checkpoint, plan, ending.step)
            if trouble:
                execution.problem(trouble)
            tally.rows_equal += not trouble and not checks.unequal_rows(ending, expected)
        _say(
            f"{number}: {plan.model} on {plan.place}, {tally.kills.total() - kills_before} kills in "
            f"{time.monotonic() - began:.0f} s; {tally.kills.total()} in all"
        )
        for line in tally.problems[problems:]:
            _say(line)
        if len(tally.problems) == problems:
            shutil.rmtree(folder)


def _tally_of(jobs: int, sweep: Callable[[int], Tally], folder: Path) -> Tally:
    """Runs the jobs of a sweep side by side, each in a process that forks its trainings itself."""
    if jobs == 1:
        return sweep(0)
    seen = [folder / f"tally-{job}" for job in range(jobs)]

    def write(job: int) -> None:
        seen[job].write_bytes(pickle.dumps(sweep(job)))

    forking = multiprocessing.get_context("fork")
    processes = [forking.Process(target=write, args=(job,)) for job in range(jobs)]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join()
    except KeyboardInterrupt:
        for process in processes:
            os.kill(process.pid, signal.SIGINT)
        for process in processes:
            process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit("A job of the sweep has failed.")
    return sum((pickle.loads(each.read_bytes()) for each in seen), Tally())


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Makes a sweep and prints its results, up to a Ctrl-C.

    Returns:
        0 if all promises were kept.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument(
        "--pauses", default="10", help="older attempts to pause; all: at each write"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--models", default="taxi,digits", help="some of: taxi, digits")
    parser.add_argument("--places", default="host,cores", help="some of: host, cores")
    parser.add_argument("--jobs", type=int, default=1, help="trainings to kill side by side")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--rows", type=int, default=512, help="rows to train on")
    parser.add_argument("--evaluations", type=int, default=2, help="evaluations in training")
    parser.add_argument("--no-check", action="store_true", help="without the check of exports")
    parser.add_argument("--json", type=Path, help="also write what was seen to this file")
    given = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder / "tmp")
    (folder / "tmp").mkdir()
    # What is imported by now is never freed, and need not be copied for each process.
    gc.freeze()
    plans = []
    for model in given.models.split(","):
        inputs = folder / f"{model}-inputs"
        work = functools.partial(data.prepare, model, inputs, rows=given.rows)
        _, status = os.waitpid(in_process(work, folder / "prepare.txt"), 0)
        if status:
            raise SystemExit(f"The data can't be prepared: see {folder}/prepare.txt")
        plans += [
            Plan(
                model=model,
                place=place,
                inputs=inputs,
                rows=given.rows,
                steps=given.steps,
                check=not given.no_check,
                evaluations=given.evaluations,
            )
            for place in given.places.split(",")
        ]
    # Even if a shell has started this in the background, and ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def run_sweep(job: int) -> Tally:
        of_job = folder if given.jobs == 1 else folder / f"job-{job}"
        sweep = Sweep(plans, of_job, seed=given.seed, job=job, jobs=given.jobs)
        with contextlib.suppress(KeyboardInterrupt):
            sweep.run(given.kills, None if given.pauses == "all" else int(given.pauses))
        return sweep.tally

    tally = _tally_of(given.jobs, run_sweep, folder)
    print(f"seed {given.seed}", *tally.lines(), sep="\n")
    if given.json:
        given.json.write_text(json.dumps(vars(tally)))
    if tally.problems:
        return 1
    # After Ctrl-C a process may still be writing there.
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
