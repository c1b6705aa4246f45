"""`make bench`: measures TPUEstimator, ours and the original's, with Keras and a bare loop as peers."""

import contextlib
import datetime
import functools
import math
import os
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks import processes, serving
from benchmarks.contenders import CONTENDERS
from benchmarks.oracle_environment import oracle_python
from benchmarks.plan import FULL, OF_REAL_SIZE, QUICK, Measurement, Plan, Request
from benchmarks.processes import Failed, take_turns
from benchmarks.report import draw, report_of
from benchmarks.rounds import MOST, Round, Turns, counted, make_rounds
from benchmarks.targets import settled

QUICK_ROUNDS = 1

# Clock readings for each exported model and batch size.
FULL_SEGMENTS = 7
QUICK_SEGMENTS = 2


def _names(known: Any, default: Any = ()) -> Any:
    def check(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
        names = tuple(value.split(",")) if value else tuple(default or known)
        for name in names:
            if name not in known:
                raise click.BadParameter(f"{name!r} is not one of {', '.join(known)}.")
        return names

    return check


@click.command()
@click.option("--quick", is_flag=True, help="A short run: less of everything.")
@click.option("--gpu", is_flag=True, help="Lets every contender use the machine's GPU.")
@click.option(
    "--models",
    default="",
    callback=_names({**FULL, **OF_REAL_SIZE}, FULL),
    help=f"Of {', '.join(FULL)}, and {', '.join(OF_REAL_SIZE)}, which are large and measured only "
    "if named.",
)
@click.option(
    "--contenders", default="", callback=_names(CONTENDERS), help=f"Of {', '.join(CONTENDERS)}."
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    help=f"Most rounds. Defaults to {MOST}, fewer once all ratios are known well enough; "
    f"{QUICK_ROUNDS} with --quick.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=os.cpu_count(),
    show_default=True,
    help="TensorFlow's threads, the same for all contenders.",
)
@click.option(
    "--timeout",
    type=click.IntRange(1, 86_400),
    default=900,
    show_default=True,
    help="Seconds that a contender may take for one activity.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Folder of the results. Defaults to runs/bench/ and the time.",
)
def main(
    quick: bool,
    gpu: bool,
    models: tuple[str, ...],
    contenders: tuple[str, ...],
    rounds: int | None,
    threads: int,
    timeout: float,
    output: Path | None,
) -> None:
    """Measures the contenders in turns, each in its own processes."""
    console = Console()
    if not console.is_terminal:
        # A log has no width.
        console = Console(width=120)
    began = datetime.datetime.now().astimezone()
    rounds = rounds or (QUICK_ROUNDS if quick else MOST)
    output = output or Path("runs/bench") / began.strftime("%Y%m%d-%H%M%S")
    gpus = _gpus(sys.executable) if gpu else []
    if any(CONTENDERS[name].of_original for name in contenders):
        oracle = oracle_python()
        if gpu:
            _gpus(str(oracle))
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.ClickException(
            f"--output {str(output)!r} can't be created ({error.strerror}); name another folder"
        ) from None
    known = {**(QUICK if quick else FULL), **OF_REAL_SIZE}
    plans = {name: known[name] for name in models}
    made = measure_all(
        plans,
        contenders,
        most_rounds=rounds,
        threads=threads,
        timeout=timeout,
        console=console,
        gpu=gpu,
    )
    conditions = {
        "measured": began.isoformat(timespec="seconds"),
        "machine": f"{_processor()}, {os.cpu_count()} cores",
        "GPU": ", ".join(gpus) or "none used",
        "threads": threads,
        "plan": "quick" if quick else "full",
        **_conditions(made),
    }
    served = serving.measure_all(
        [name for name in models if name not in OF_REAL_SIZE],
        segments=QUICK_SEGMENTS if quick else FULL_SEGMENTS,
        threads=threads,
        timeout=timeout,
        console=console,
    )
    report = report_of(made, contenders, conditions)
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


def measure_all(
    plans: dict[str, Plan],
    contenders: tuple[str, ...],
    *,
    most_rounds: int,
    threads: int,
    timeout: float,
    console: Console,
    gpu: bool = False,
) -> dict[str, list[Round]]:
    """Makes the rounds of each model."""
    made: dict[str, list[Round]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-data-") as folder, console.status("") as status:
        processes.write_records(Path(folder), threads=threads)
        for model, plan in plans.items():

            def start(contender: str, number: int, model: str = model, plan: Plan = plan) -> Turns:
                turn = f"{model}, {contender}, round {number + 1}"
                request = Request(
                    contender=contender, model=model, plan=plan, data_folder=folder, model_dir=""
                )
                turns = take_turns(request, threads=threads, timeout=timeout, gpu=gpu)
                with contextlib.closing(turns):
                    status.update(turn)
                    for found in turns:
                        if found is not None:
                            console.print(f"{turn}: {_told(found)}", highlight=False, markup=False)
                        yield found
                        status.update(turn)

            made[model] = make_rounds(
                [name for name in contenders if CONTENDERS[name].runs(model)],
                start,
                settled=functools.partial(settled, model),
                together=plan.together,
                most=most_rounds,
            )
    return made


def _conditions(made: Mapping[str, Sequence[Round]]) -> dict[str, Any]:
    machines = [m for rounds in made.values() for each in rounds for m in each.machine.values()]
    busy = sum(each.is_busy for rounds in made.values() for each in rounds)
    mhz = [machine.mhz for machine in machines]
    return {
        "rounds": ", ".join(f"{len(counted(each))} ({model})" for model, each in made.items()),
        "rounds on a busy machine": busy,
        "taken by others, at most": f"{max(machine.others for machine in machines):.0%}",
        "frequency": f"{min(mhz):,.0f} to {max(mhz):,.0f} MHz" if all(mhz) else "not told",
    }


def _gpus(python: str) -> list[str]:
    """Returns the names of the GPUs that an environment can use."""
    found = processes.gpus_of(python)
    if not found:
        raise click.ClickException(
            f"--gpu: the TensorFlow of {python} finds no GPU on this machine; leave --gpu out, or "
            "use a machine with a GPU and CUDA's libraries (pip install 'tensorflow[and-cuda]' in "
            "that environment)"
        )
    return found


def _told(found: Measurement | Failed) -> str:
    if isinstance(found, Failed):
        return f"failed: {found.reason}"
    if math.isnan(found.train_steps_per_second):
        return f"first step after {found.first_step_seconds:.1f} s"
    return f"{found.train_steps_per_second:,.0f} steps/s"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    main()
