"""`make bench`: TPUEstimator, ours and the original's, beside Keras and a bare loop, in one run."""

from __future__ import annotations

import dataclasses
import datetime
import math
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks import processes, serving
from benchmarks.contenders import BASELINE, CONTENDERS
from benchmarks.oracle_environment import oracle_python
from benchmarks.plan import FULL, QUICK, Measurement, Plan, Request
from benchmarks.plot import draw
from benchmarks.processes import Failed
from benchmarks.report import Report
from benchmarks.summary import summarize
from benchmarks.targets import outcomes

FULL_REPETITIONS = 3
QUICK_REPETITIONS = 1

# Readings of the clock for each exported model and size of batch.
FULL_SEGMENTS = 7
QUICK_SEGMENTS = 2


def _names(known: Any) -> Any:
    def check(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
        names = tuple(value.split(",")) if value else tuple(known)
        for name in names:
            if name not in known:
                raise click.BadParameter(f"{name!r} is none of {', '.join(known)}.")
        return names

    return check


@click.command()
@click.option("--quick", is_flag=True, help="A short run: less of everything.")
@click.option("--models", default="", callback=_names(FULL), help=f"Of {', '.join(FULL)}.")
@click.option(
    "--contenders", default="", callback=_names(CONTENDERS), help=f"Of {', '.join(CONTENDERS)}."
)
@click.option(
    "--repetitions",
    type=click.IntRange(min=1),
    help=f"Processes for each; for those that no target is close to, one. Defaults to "
    f"{FULL_REPETITIONS}; {QUICK_REPETITIONS} with --quick.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=os.cpu_count(),
    show_default=True,
    help="Threads of TensorFlow, the same for all.",
)
@click.option(
    "--timeout", default=900.0, show_default=True, help="Seconds that a process may take."
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Folder of the results. Defaults to runs/bench/ and the time.",
)
def main(
    quick: bool,
    models: tuple[str, ...],
    contenders: tuple[str, ...],
    repetitions: int | None,
    threads: int,
    timeout: float,
    output: Path | None,
) -> None:
    """Measures the contenders side by side, each in processes of its own."""
    console = Console()
    if not console.is_terminal:
        # A log has no width of its own.
        console = Console(width=120)
    began = datetime.datetime.now().astimezone()
    repetitions = repetitions or (QUICK_REPETITIONS if quick else FULL_REPETITIONS)
    output = output or Path("runs/bench") / began.strftime("%Y%m%d-%H%M%S")
    if any(CONTENDERS[name].of_original for name in contenders):
        oracle_python()
    output.mkdir(parents=True, exist_ok=True)
    plans = {name: (QUICK if quick else FULL)[name] for name in models}
    results = measure_all(
        plans,
        contenders,
        repetitions=repetitions,
        threads=threads,
        timeout=timeout,
        console=console,
    )
    conditions = {
        "measured": began.isoformat(timespec="seconds"),
        "machine": f"{_processor()}, {os.cpu_count()} cores",
        "threads": threads,
        "repetitions": repetitions,
        "plan": "quick" if quick else "full",
        "system load before": f"{results.loads[0]:.1f}",
        "system load, highest during": f"{max(results.loads):.1f}",
    }
    served = serving.measure_all(
        models,
        segments=QUICK_SEGMENTS if quick else FULL_SEGMENTS,
        threads=threads,
        timeout=timeout,
        console=console,
    )
    report = results.report(baseline=BASELINE, conditions=conditions)
    report.print(console)
    console.print(serving.table(served))
    (output / "results.json").write_text(report.json(), encoding="utf-8")
    (output / "serving.json").write_text(serving.as_json(served), encoding="utf-8")
    (output / "report.md").write_text(
        f"{report.markdown()}\n{serving.markdown(served)}", encoding="utf-8"
    )
    draw(report, output / "plot.png")
    console.print(
        f"written: {output}/ (report.md, results.json, serving.json, plot.png)", highlight=False
    )
    if all(row.failure for rows in report.summaries.values() for row in rows):
        raise click.ClickException("every contender failed")


@dataclasses.dataclass(frozen=True)
class Results:
    """What all processes found.

    Attributes:
        measured: Model -> contender -> its repetitions.
        failures: Model -> contender -> why it failed.
        loads: The system's load average before each process.
        runs: Each process, in order, for the JSON.
    """

    measured: dict[str, dict[str, list[Measurement]]]
    failures: dict[str, dict[str, str]]
    loads: list[float]
    runs: list[dict[str, Any]]

    def report(self, *, baseline: str, conditions: dict[str, Any]) -> Report:
        summaries = {
            model: summarize(measured, self.failures[model], baseline=baseline)
            for model, measured in self.measured.items()
        }
        return Report(
            summaries=summaries,
            outcomes=outcomes(summaries),
            baseline=baseline,
            conditions=conditions,
            runs=self.runs,
        )


def measure_all(
    plans: dict[str, Plan],
    contenders: tuple[str, ...],
    *,
    repetitions: int,
    threads: int,
    timeout: float,
    console: Console,
) -> Results:
    """Runs every contender on every model, up to `repetitions` times.

    The contenders take turns (A B C A B C), so that what else the machine does meets all of them.
    One that failed on a model is not tried on it again.

    Args:
        plans: How much is measured, by model.
        contenders: Names of the contenders, in the order of the tables.
        repetitions: Processes of each contender on each model.
        threads: Threads of TensorFlow's pools.
        timeout: Seconds that a process may take.
        console: Where progress is shown.

    Returns:
        What was found.
    """
    measured = {
        model: {name: [] for name in contenders if CONTENDERS[name].runs(model, 0)}
        for model in plans
    }
    results = Results(measured, {model: {} for model in plans}, [], [])
    with tempfile.TemporaryDirectory(prefix="bench-data-") as folder, console.status("") as status:
        processes.write_records(Path(folder), threads=threads)
        for repetition in range(repetitions):
            for model, plan in plans.items():
                for contender in contenders:
                    if contender in results.failures[model]:
                        continue
                    if not CONTENDERS[contender].runs(model, repetition):
                        continue
                    turn = f"{model}, {contender}, repetition {repetition + 1} of {repetitions}"
                    status.update(turn)
                    results.loads.append(os.getloadavg()[0])
                    request = Request(
                        contender=contender,
                        model=model,
                        plan=plan,
                        data_folder=folder,
                        model_dir="",
                    )
                    found = processes.run(request, threads=threads, timeout=timeout)
                    run = {"model": model, "contender": contender, "load": results.loads[-1]}
                    results.runs.append(run | dataclasses.asdict(found))
                    if isinstance(found, Failed):
                        results.failures[model][contender] = found.reason
                        console.print(f"{turn}: failed: {found.reason}", markup=False)
                    else:
                        results.measured[model][contender].append(found)
                        rate = f"{found.train_steps_per_second:,.0f} steps/s"
                        if math.isnan(found.train_steps_per_second):
                            rate = f"first step after {found.first_step_seconds:.1f} s"
                        console.print(f"{turn}: {rate}", highlight=False)
    return results


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    main()
