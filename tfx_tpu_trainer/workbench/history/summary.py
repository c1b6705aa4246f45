"""Prints a run in a terminal: its results, and further commands."""

import dataclasses
import datetime
import difflib
import json
import math
import os
import shutil
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_metadata
import yaml
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tfx_tpu_trainer._support.terminal import standard_output
from tfx_tpu_trainer.workbench.history.progress import MARKS, STYLES
from tfx_tpu_trainer.workbench.history.report import (
    REPORT,
    STEP,
    Failure,
    RunReport,
    collect,
    failed_nodes,
    find_artifacts,
)
from tfx_tpu_trainer.workbench.history.run_log import DEBUG_LOG, DIAGRAM_FILE, LOG
from tfx_tpu_trainer.workbench.project import metadata, roots
from tfx_tpu_trainer.workbench.project.config import ConfigError
from tfx_tpu_trainer.workbench.project.metadata import NodeStatus, State
from tfx_tpu_trainer.workbench.project.roots import METADATA_FILE, TENSORBOARD, Root

_SHOWN = 5
# The file of a search's table, in its folder.
_TRIALS = "results.txt"


def open_run(
    root: Root, name: str | None
) -> tuple[ml_metadata.MetadataStore, str, list[NodeStatus]]:
    """Opens ML Metadata, and finds a run by name with its components' statuses."""
    store = root.store()
    run = _find_run(metadata.run_names(store), name, root)
    statuses = metadata.node_statuses(store, run).values()
    return store, run, seen_from_outside(statuses, root.folder)


def _find_run(runs: Sequence[str], name: str | None, root: Root) -> str:
    if not runs:
        raise ConfigError(f"{str(root.folder)!r} has no runs; run the pipeline first")
    if name is None or name in runs:
        return name or runs[-1]
    meant = [run for run in runs if run.startswith(name)]
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise ConfigError(
            f"{name!r} is the beginning of {len(meant)} runs' names; give more of one, such as "
            f"{meant[-1]!r}"
        )
    nearest = difflib.get_close_matches(name, runs, n=1)
    hint = f"did you mean {nearest[0]!r}? The" if nearest else "the"
    newest = ", ".join(runs[-_SHOWN:])
    raise ConfigError(f"unknown run {name!r} in {str(root.folder)!r}; {hint} newest are {newest}")


def seen_from_outside(statuses: Iterable[NodeStatus], root: Path) -> list[NodeStatus]:
    """Returns a run's statuses with those of a killed process corrected."""
    # A killed process can't record its end, so ML Metadata shows it as running forever. The lock decides: if no
    # process holds the root, or its holder began after these components, a "running" component was killed.
    statuses = list(statuses)
    try:
        since = roots.held_since(root)
    except OSError:
        return statuses
    # A run in progress may not have begun its first component; the newest recorded run is then an older one.
    goes_on = since is not None and any(status.started >= since for status in statuses)
    return statuses if goes_on else [metadata.killed_if_running(status) for status in statuses]


def in_words(statuses: Sequence[NodeStatus]) -> str:
    """Describes a run's state, start and duration."""
    if not statuses:
        return "no component has started"
    time = datetime.datetime.fromtimestamp(began(statuses))
    seconds = sum(status.seconds for status in statuses)
    return f"{state_of(statuses).value}, started {time:%Y-%m-%d %H:%M}, {seconds:.1f} s"


def state_of(statuses: Sequence[NodeStatus]) -> State:
    """Returns a run's state."""
    states = {status.state for status in statuses}
    bad = (State.RUNNING, State.KILLED, State.FAILED)
    return next((state for state in bad if state in states), State.COMPLETE)


def began(statuses: Sequence[NodeStatus]) -> float:
    """Returns when a run's first component began, in seconds since 1970."""
    return min((status.started for status in statuses), default=0.0)


def log_of(root: Root, run: str, began: float) -> Path | None:
    """Returns the folder of a run's log, config and report; None for another runner's run."""
    folder = root.log_folder(began)
    report = None if folder is None else RunReport.read(folder / REPORT)
    return None if report is not None and report.run not in (None, run) else folder


_BARS = "▁▂▃▄▅▆▇█"
# This many points fit into 80 columns next to their names and ends.
_MOST_POINTS = 20

_WIDTH = 140


def print_run(root: Root, name: str | None, *, serving_absent: Collection[str] = ()) -> None:
    """Prints a run like its own summary."""
    store, run, statuses = open_run(root, name)
    folder = log_of(root, run, began(statuses))
    failure = failure_of(statuses)
    report = RunReport(failure=failure)
    if failure is None:
        try:
            report = _report_of(store, run, folder, serving_absent)
        except FileNotFoundError as error:
            raise ConfigError(
                f"{error}: the results of run {run} have been removed; its log may still exist, "
                "and `tfx-tpu-trainer history` lists its metrics"
            ) from None
    names = root.folder / TENSORBOARD
    if names.is_dir() and report.model_run:
        report = dataclasses.replace(report, tensorboard=str(names))
    console = standard_output(width=_WIDTH)
    console.print(f"Run {run}: {in_words(statuses)}", style="bold", soft_wrap=True)
    print_summary(
        console,
        statuses=_with_the_rest(statuses, folder),
        report=report,
        metadata_file=str(root.metadata_file),
        log=folder / LOG if folder is not None else None,
        artifacts=[
            (status.node, key, artifact.uri)
            for status in statuses
            for key, artifact in metadata.outputs(store, status.execution_id).items()
            if not _is_empty(artifact)
        ],
    )


def _report_of(
    store: ml_metadata.MetadataStore, run: str, folder: Path | None, absent: Collection[str]
) -> RunReport:
    """Returns a run's own report; for another runner's run, one made from its artifacts."""
    written = None if folder is None else RunReport.read(folder / REPORT)
    if written is None or written.run != run:
        return collect(store, run, serving_absent=_absent(folder, absent))
    # Also fails here if the run's model has been removed.
    find_artifacts(store, run)
    gone = written.page is not None and not os.path.exists(written.page)
    return dataclasses.replace(written, page=None) if gone else written


def _is_empty(artifact: Any) -> bool:
    """Returns whether an artifact is an empty folder, as of a Pusher that pushed nothing."""
    try:
        return not any(os.scandir(artifact.uri))
    except OSError:
        # A file, a missing folder, or a path in a bucket.
        return False


def print_summary(
    console: Console,
    *,
    statuses: Sequence[NodeStatus],
    report: RunReport,
    metadata_file: str,
    log: Path | None,
    artifacts: Sequence[tuple[str, str, str]] = (),
) -> None:
    """Prints a run's results; with artifacts, their locations by component and key."""
    console.print(components_table(statuses, report))
    cached = [status.node for status in statuses if status.state is State.CACHED]
    if cached:
        console.print(
            f"{len(cached)} of {len(statuses)} components came from TFX's cache.",
            style="cyan",
        )
    if report.failure is None:
        console.print(results_table(report))
    if report.best_params:
        console.print(Text(_search_in_words(report)), soft_wrap=True)
    if artifacts:
        console.print(Text("Artifacts", style="italic"))
    width = max((len(f"{node} {key}") for node, key, _ in artifacts), default=0)
    for node, key, uri in artifacts:
        line = Text(f"{f'{node} {key}':<{width}}  ", style="dim")
        console.print(line.append(short_path(uri), style="not dim"), soft_wrap=True)
    console.print(Text("Look further", style="italic"))
    for name, command in commands(report, metadata_file=metadata_file, log=log):
        # Never wrapped, since a command must be easy to copy.
        console.print(
            Text(f"{name:<12}  ", style="dim").append(command, style="not dim"), soft_wrap=True
        )
    if report.failure is not None:
        where = f"{report.failure.node} failed" if report.failure.node else "The run failed"
        console.print(Text(f"{where}: {report.failure.message}", style="bold red"), soft_wrap=True)
    elif report.blessed is False:
        advice = report.advice or "Change the model or the gate's bounds."
        console.print(Text(f"Not blessed. {advice}", style="bold yellow"), soft_wrap=True)


def _search_in_words(report: RunReport) -> str:
    """Describes the result of a hyperparameter search as config settings."""
    found = yaml.safe_dump({"model": report.best_params}, default_flow_style=None, sort_keys=False)
    return (
        f"The best settings of {report.trials:,} trials, with which the model above was trained. For all later runs, "
        f"write them into config.yaml:\n\n{found}"
    )


def components_table(statuses: Sequence[NodeStatus], report: RunReport) -> Table:
    """Returns each component's state and seconds."""
    idle = report.pusher if report.pushed is None else None
    table = Table(
        title="Components",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    table.add_column("")
    table.add_column("component")
    table.add_column("state")
    table.add_column("seconds", justify="right")
    for status in statuses:
        table.add_row(
            MARKS.get(status.state, ""),
            status.node,
            "nothing pushed" if status.node == idle else _in_a_word(status.state),
            f"{status.seconds:.1f}" if status.execution_id is not None else "",
            style=STYLES.get(status.state, ""),
        )
    table.add_section()
    table.add_row("", "total", "", f"{sum(status.seconds for status in statuses):.1f}")
    return table


def _in_a_word(state: State) -> str:
    return "cached" if state is State.CACHED else state.value


def results_table(report: RunReport) -> Table:
    """Returns the numbers, the verdict, the pushed model and one prediction."""
    table = _pairs("Results")
    if report.train_loss is not None:
        _add(table, "train loss", f"{report.train_loss:.4f} ({_recorded_step(report)})")
    if report.ran_on is not None:
        _add(table, "ran on", report.ran_on)
    if report.eval_metrics:
        rows = f" ({report.eval_examples:,} rows)" if report.eval_examples else ""
        values = {k: f"{v:.4f}" for k, v in report.eval_metrics.items() if k != STEP}
        _add(table, f"eval metrics{rows}", _joined(values, " "))
    for name, line in curve_lines(report.learning_curve):
        _add(table, f"{name} while training", line)
    if report.best_step is not None:
        _add(table, "best evaluation", f"step {report.best_step:,}")
    verdicts = {
        True: ("blessed", "green"),
        False: ("not blessed", "red"),
        None: ("not judged", "yellow"),
    }
    word, style = verdicts[report.blessed]
    table.add_row("the gate", Text(report.verdict or word, style=style))
    _add(table, "pushed to", short_path(report.pushed) if report.pushed else "nowhere")
    for tags, signatures in report.signatures.items():
        _add(table, f"SavedModel [{tags}]", ", ".join(signatures))
    if report.prediction:
        _add(table, "a real row", _joined(report.prediction.row))
        _add(table, "its prediction", _joined(report.prediction.outputs))
        if report.prediction.withheld:
            _add(table, "not judged by it", _joined(report.prediction.withheld))
    return table


def _recorded_step(report: RunReport) -> str:
    """Describes the step of a recorded loss: one is written every save_summary_steps, seldom at the end."""
    step, steps = report.train_step or 0, report.trained_steps or 0
    return f"step {step:,} of {steps:,}, the last recorded" if step < steps else f"step {step:,}"


def curve_lines(points: Sequence[Mapping[str, float]]) -> list[tuple[str, str]]:
    """Draws a learning curve in the terminal: one line per metric, with its first and last value."""
    if len(points) < 2:
        return []
    # Counted from the end, so the last value is always included.
    stride = -(-len(points) // _MOST_POINTS)
    points = points[::-1][::stride][::-1]
    first, last = points[0], points[-1]
    lines: list[tuple[str, str]] = []
    for name in last:
        if name == STEP or name not in first:
            continue
        values = [point.get(name, math.nan) for point in points]
        ends = " to ".join(f"{end[name]:.4f} (step {end[STEP]:,.0f})" for end in (first, last))
        line = f"{_sparkline(values)}  {ends}"
        # Some models have several names for the mean loss.
        if line not in (known for _, known in lines):
            lines.append((name, line))
    return lines


def _sparkline(values: Sequence[float]) -> str:
    """Returns one character per value, from lowest to highest; a space for NaN."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    top = len(_BARS) - 1
    return "".join(
        _BARS[round((value - low) / (high - low) * top) if high > low else 0]
        if math.isfinite(value)
        else " "
        for value in values
    )


def commands(report: RunReport, *, metadata_file: str, log: Path | None) -> list[tuple[str, str]]:
    """Returns further commands, each with its purpose."""
    found = []
    if events := report.tensorboard or report.model_run:
        found.append(("TensorBoard", f"{program('tensorboard')} --logdir {short_path(events)}"))
    if report.model:
        shown = f"{program('tfx-tpu-trainer')} inspect {short_path(report.model)}"
        found.append(("the model", shown))
    root = Path(metadata_file)
    # By its folder, unless the file has a different name or place.
    root = root.parent if root.name == METADATA_FILE else root
    tables = sorted(root.glob(f"tuning/*/{_TRIALS}"), key=os.path.getmtime)
    if report.best_params and tables:
        found.append(("all trials", f"less {short_path(tables[-1])}"))
    history = f"{program('tfx-tpu-trainer')} history --root {short_path(root)}"
    found.append(("all runs", history))
    if log is not None and (diagram := log.with_name(DIAGRAM_FILE)).exists():
        found.append(("the graph", short_path(diagram)))
    if log is not None:
        found.append(("the log", f"less {short_path(log)}"))
        found.append(("all of it", f"less {short_path(log.with_name(DEBUG_LOG))}"))
    if report.page is not None:
        found.append(("the page", short_path(report.page)))
    return found


def program(name: str) -> str:
    """Returns a program of this environment as typed from here."""
    path = Path(sys.executable).parent / name
    found = shutil.which(name)
    return name if found is not None and Path(found) == path else short_path(path)


def _pairs(title: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        show_header=False,
        show_edge=False,
        pad_edge=False,
        box=None,
    )
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _add(table: Table, name: str, value: str) -> None:
    """Adds a row unchanged, since rich would read brackets in a plain string as markup."""
    table.add_row(Text(name), Text(value))


def _joined(values: Mapping[str, str], sign: str = "=") -> str:
    return "  ".join(f"{name}{sign}{value}" for name, value in values.items())


def short_path(path: str | Path) -> str:
    """Returns a path relative to the current folder if that is shorter."""
    path = str(path)
    relative = os.path.relpath(path)
    return relative if len(relative) < len(path) else path


def failure_of(statuses: Sequence[NodeStatus]) -> Failure | None:
    """Returns why a run did not succeed; `None` for a successful one."""
    for status in failed_nodes({status.node: status for status in statuses}):
        return Failure(status.node, status.error or "its inputs could not be resolved; see the log")
    for status in statuses:
        if status.state is State.KILLED:
            return Failure(status.node, status.error or metadata.KILLED)
        if status.state is State.RUNNING:
            return Failure(None, f"in progress: {status.node} is running")
    return None if statuses else Failure(None, "no component has started")


def _absent(folder: Path | None, otherwise: Collection[str]) -> Collection[str]:
    config = folder / "config.json" if folder is not None else None
    if config is None or not config.exists():
        return otherwise
    return json.loads(config.read_text(encoding="utf-8")).get("serving_absent", otherwise)


def _with_the_rest(statuses: Sequence[NodeStatus], folder: Path | None) -> list[NodeStatus]:
    """Adds the components that never began, if the run's plan names them."""
    plan = folder / "plan.json" if folder is not None else None
    if plan is None or not plan.exists():
        return list(statuses)
    found = {status.node: status for status in statuses}
    nodes = json.loads(plan.read_text(encoding="utf-8"))
    if not set(found) <= set(nodes):
        # The plan of another run.
        return list(statuses)
    return [found.get(node, NodeStatus(node, State.SKIPPED)) for node in nodes]
