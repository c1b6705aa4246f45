"""`python -m benchmarks.measure REQUEST`: measures one contender in its own process.

It runs in our environment and in the original's, since it needs only the contender's own imports.
`benchmarks.processes` starts it and its turns.
"""

import importlib
import math
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Protocol

from benchmarks.contenders import CONTENDERS
from benchmarks.plan import Measurement, Request


class Runner(Protocol):
    """The object that a contender's `make` returns.

    If they can be measured, it has further attributes: `train_end_seconds`, from the last step of the latest `train` to
    its end; `build_seconds`, from the first call of `first_steps` to a complete graph; and `work_seconds`, of the
    latest `evaluate` or `predict`, from its open session to its last row.
    """

    batch_size: int

    def first_steps(self, steps: int) -> float:
        """Trains from the initial values; returns the time when the steps were done."""

    def train(self, steps: int, segments: int) -> list[float]:
        """Continues training, from the start of the data.

        Returns the steps per second of each segment except the first, which warms up.
        """

    def evaluate(self, batches: int) -> float | None:
        """Evaluates a number of batches from the start of the data; returns the mean loss."""

    def predict(self, batches: int) -> int:
        """Predicts a number of batches row by row; returns the number of rows."""

    def steps_made(self) -> int:
        """Returns the number of steps trained."""


def measure(request: Request, wait: Callable[[], object] = lambda: None) -> Measurement:
    """Measures one contender on one model, in this process."""
    contender, plan = CONTENDERS[request.contender], request.plan
    runner: Runner = importlib.import_module(contender.module).make(request, **contender.options)
    first_step_seconds = runner.first_steps(plan.first_steps) - request.started
    segment_rates: list[float] = []
    eval_loss, eval_rate, predict_rate = None, math.nan, math.nan
    activities = set(contender.activities) & set(plan.activities)
    wait()
    if "train" in activities:
        segment_rates = runner.train(plan.segment_steps, plan.segments + 1)
    train_memory_mb = peak_memory_mb()
    wait()
    if contender.activities:
        eval_loss = runner.evaluate(plan.eval_batches[0])
    if "evaluate" in activities:
        eval_rate = _batches_per_second(runner, runner.evaluate, plan.eval_batches, plan.pairs)
    wait()
    if "predict" in activities:
        predict_rate = _batches_per_second(runner, runner.predict, plan.predict_batches, plan.pairs)
    return Measurement(
        first_step_seconds=first_step_seconds,
        train_steps_per_second=statistics.median(segment_rates) if segment_rates else math.nan,
        eval_examples_per_second=eval_rate * runner.batch_size,
        predict_examples_per_second=predict_rate * runner.batch_size,
        memory_mb=peak_memory_mb(),
        train_memory_mb=train_memory_mb,
        segment_rates=tuple(segment_rates),
        steps=runner.steps_made(),
        eval_loss=eval_loss,
        tensorflow=sys.modules["tensorflow"].__version__,
        train_end_seconds=getattr(runner, "train_end_seconds", math.nan),
        build_seconds=getattr(runner, "build_seconds", math.nan),
    )


def _batches_per_second(
    runner: Runner, run: Callable[[int], object], sizes: tuple[int, int], pairs: int
) -> float:
    """Computes the rate from the difference of a long and a short run; NaN if noise exceeds it."""
    small, large = sizes
    differences = [
        _seconds(runner, run, large) - _seconds(runner, run, small) for _ in range(pairs)
    ]
    difference = statistics.median(differences)
    return (large - small) / difference if difference > 0 else math.nan


def _seconds(runner: Runner, run: Callable[[int], object], batches: int) -> float:
    started = time.monotonic()
    run(batches)
    seconds = time.monotonic() - started
    return getattr(runner, "work_seconds", seconds)


def peak_memory_mb() -> float:
    # getrusage would include the parent's memory from before this program was loaded.
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    (peak,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(peak.split()[1]) / 1024


def main() -> None:
    # Libraries may print to the standard output; only lines written here are answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def wait() -> None:
        print(file=answers, flush=True)
        if not sys.stdin.readline():
            sys.exit("the benchmark has ended")

    print(measure(Request.from_json(sys.argv[1]), wait).to_json(), file=answers, flush=True)


if __name__ == "__main__":
    main()
