"""Reports results: tables on the terminal and in Markdown, a plot, and results.json, written and read."""

import collections
import dataclasses
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import matplotlib as mpl
from rich.console import Console
from rich.table import Table

from benchmarks.contenders import BASELINE, CONTENDERS
from benchmarks.plan import TITLES, Measurement
from benchmarks.rounds import Machine, Round, counted
from benchmarks.summary import METRICS, Cell, Interval, Metric, Row, summarize
from benchmarks.targets import Outcome, outcomes

# A display is neither needed nor looked for.
mpl.use("Agg")

from matplotlib import pyplot as plt

_BARS = {"ours": "#1a7f5a", "real": "#b3541e"}
_OTHER_BARS = "#8fa3b0"
_COLORS = {"reached": "green", "missed": "red", "open": "yellow"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """A finished benchmark."""

    summaries: Mapping[str, Sequence[Row]]
    outcomes: Sequence[Outcome]
    # The denominator of the ratios.
    baseline: str
    conditions: Mapping[str, Any]
    runs: Sequence[Mapping[str, Any]]

    def print(self, console: Console) -> None:
        """Prints the tables on a terminal."""
        for model, rows in self.summaries.items():
            table = Table(title=TITLES[model], caption=losses_line(rows), title_justify="left")
            table.add_column("")
            for metric in METRICS:
                table.add_column(metric.title, justify="right")
            for row in rows:
                title = CONTENDERS[row.contender].title
                if row.failure:
                    table.add_row(title, "[red]failed[/red]", style="dim")
                else:
                    table.add_row(title, *(text_of(row.cells[m.field], m) for m in METRICS))
            console.print(table)
            for row in rows:
                if row.failure:
                    console.print(
                        f"{row.contender} failed: {row.failure}", style="red", markup=False
                    )
        if self.outcomes:
            console.print(self._targets_table())

    def markdown(self) -> str:
        """Returns the tables as Markdown."""
        lines = ["# Benchmark", ""]
        lines += [f"- {name}: {value}" for name, value in self.conditions.items()]
        lines += [
            (
                f"- in brackets: divided by {CONTENDERS[self.baseline].title} in the same round, "
                "and the 95 % interval of that"
            ),
            "",
        ]
        for model, rows in self.summaries.items():
            lines += [f"## {TITLES[model]}", ""]
            lines.append(f"| | {' | '.join(metric.title for metric in METRICS)} |")
            lines.append("|---" + "|---:" * len(METRICS) + "|")
            for row in rows:
                cells = ["failed", *[""] * (len(METRICS) - 1)]
                if not row.failure:
                    cells = [text_of(row.cells[metric.field], metric) for metric in METRICS]
                lines.append(f"| {' | '.join([CONTENDERS[row.contender].title, *cells])} |")
            lines += ["", losses_line(rows), ""]
            failures = [f"- {row.contender} failed: {row.failure}" for row in rows if row.failure]
            lines += [*failures, ""] if failures else []
        if self.outcomes:
            lines += ["## Targets", "", *targets_lines(self.outcomes)]
        return "\n".join(lines).rstrip() + "\n"

    def json(self) -> str:
        """Returns all results; a missing number is null."""
        fields = {
            "conditions": dict(self.conditions),
            "baseline": self.baseline,
            "summaries": {
                model: [dataclasses.asdict(row) for row in rows]
                for model, rows in self.summaries.items()
            },
            "targets": [
                dataclasses.asdict(each) | {"verdict": each.verdict} for each in self.outcomes
            ],
            "runs": [dict(run) for run in self.runs],
        }
        return json.dumps(_without_nan(fields), indent=1) + "\n"

    def _targets_table(self) -> Table:
        table = Table("model", "target", "found", "", title="Targets", title_justify="left")
        for each in self.outcomes:
            table.add_row(
                TITLES[each.target.model],
                each.target.describe(),
                interval_text(each.ratio),
                f"[{_COLORS[each.verdict]}]{each.verdict}",
            )
        return table


def report_of(
    made: Mapping[str, Sequence[Round]], contenders: Sequence[str], conditions: Mapping[str, Any]
) -> Report:
    """Summarizes the rounds."""
    rounds = {model: counted(each) for model, each in made.items()}
    return Report(
        summaries={
            model: summarize(each, contenders, baseline=BASELINE) for model, each in rounds.items()
        },
        outcomes=outcomes(rounds),
        baseline=BASELINE,
        conditions=conditions,
        runs=runs_of(made),
    )


def runs_of(made: Mapping[str, Sequence[Round]]) -> list[dict[str, Any]]:
    """Returns every measurement or failure in order; a missing number is None."""
    runs = [
        {"model": model, "round": number, "contender": name}
        | dataclasses.asdict(each.machine[name])
        | (
            dataclasses.asdict(each.measured[name])
            if name in each.measured
            else {"reason": each.failures[name]}
        )
        for model, rounds in made.items()
        for number, each in enumerate(rounds)
        for name in each.machine
    ]
    return _without_nan(runs)


def targets_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """Returns the Markdown table of targets."""
    rows = (
        f"| {TITLES[each.target.model]} | {each.target.describe()} "
        f"| {interval_text(each.ratio)} | {each.verdict} |"
        for each in outcomes
    )
    return ["| model | target | found | |", "|---|---|---|---|", *rows]


def text_of(cell: Cell, metric: Metric) -> str:
    """Formats a number, its ratio to the baseline and the interval: `5,120 (2.05x, 1.98-2.11)`."""
    if math.isnan(cell.median):
        return "-"
    text = f"{cell.median:,.{metric.digits}f}"
    if math.isnan(cell.ratio.value):
        return text
    known = cell.ratio.low < cell.ratio.high
    between = f", {_between(cell.ratio)}" if known else ""
    return f"{text} ({cell.ratio.value:.2f}x{between})"


def interval_text(ratio: Interval) -> str:
    """Formats a ratio and its interval: `2.05 (1.98-2.11)`."""
    if math.isnan(ratio.low):
        return f"{_number(ratio.value)} (one round)"
    return f"{_number(ratio.value)} ({_between(ratio)})"


def _between(ratio: Interval) -> str:
    return f"{_number(ratio.low)}-{_number(ratio.high)}"


def _number(value: float) -> str:
    """Formats a ratio, or the number itself for a target without one."""
    return f"{value:.2f}" if value < 1000 else f"{value:,.0f}"


def losses_line(rows: Sequence[Row]) -> str:
    """Reports whether the contenders trained the same model."""
    losses = [loss for row in rows for loss in row.eval_losses]
    if not losses:
        return ""
    return f"evaluation loss after training: {min(losses):.4g} to {max(losses):.4g}"


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def draw(report: Report, path: Path) -> None:
    """Draws a report's medians."""
    models = list(report.summaries)
    most_rows = max(len(rows) for rows in report.summaries.values())
    figure, grid = plt.subplots(
        len(models),
        len(METRICS),
        figsize=(3.2 * len(METRICS), (0.32 * most_rows + 0.9) * len(models)),
        squeeze=False,
        layout="constrained",
    )
    for line, model in zip(grid, models):
        # The bars of the input alone would dwarf the CNN's.
        rows = [row for row in report.summaries[model] if row.cells and row.contender != "input"]
        names = [CONTENDERS[row.contender].title for row in rows]
        colors = [_BARS.get(row.contender.partition("-")[0], _OTHER_BARS) for row in rows]
        for column, (axes, metric) in enumerate(zip(line, METRICS)):
            medians = [row.cells[metric.field].median for row in rows]
            medians = [0 if math.isnan(median) else median for median in medians]
            bars = axes.barh(names, medians, color=colors)
            axes.bar_label(bars, fmt=f"{{:,.{metric.digits}f}}", fontsize=7, padding=2)
            axes.invert_yaxis()
            axes.margins(x=0.25)
            axes.set_xticks([])
            axes.tick_params(labelsize=7, labelleft=column == 0)
            axes.spines[["top", "right"]].set_visible(False)
            better = "more is better" if metric.higher_is_better else "less is better"
            axes.set_title(f"{metric.title} ({better})", fontsize=8)
        line[0].set_ylabel(TITLES[model], fontsize=9)
    figure.savefig(path, dpi=110)
    plt.close(figure)


_FIELDS = [field.name for field in dataclasses.fields(Measurement)]

RESULTS = click.argument(
    "results",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    nargs=-1,
    required=True,
)
"""The argument of a command that reads one results.json or several."""


def read_rounds(
    paths: Sequence[Path],
) -> tuple[dict[str, list[Round]], list[Mapping[str, Any]]]:
    """Reads the rounds of several runs together."""
    found: dict[str, list[Round]] = {}
    conditions: list[Mapping[str, Any]] = []
    for path in paths:
        try:
            text = path.read_bytes()
            content = json.loads(gzip.decompress(text) if path.suffix == ".gz" else text)
            of_run = rounds_of(content)
            conditions += content["conditions"].get("runs", [content["conditions"]])
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise click.ClickException(
                f"{path} is not a results.json of make bench: {error!r}"
            ) from None
        for model, each in of_run.items():
            found.setdefault(model, []).extend(each)
    return {model: found[model] for model in TITLES if model in found}, conditions


def rounds_of(results: Mapping[str, Any]) -> dict[str, list[Round]]:
    """Reads the rounds of a `results.json` by model, except those on a busy machine."""
    runs: dict[tuple[str, int], list[Mapping[str, Any]]] = collections.defaultdict(list)
    for run in results["runs"]:
        runs[run["model"], run["round"]].append(run)
    found: dict[str, list[Round]] = {}
    for (model, _), turns in sorted(runs.items()):
        found.setdefault(model, []).append(_round(turns))
    return {model: counted(rounds) for model, rounds in found.items()}


def _round(turns: Sequence[Mapping[str, Any]]) -> Round:
    return Round(
        measured={turn["contender"]: _measurement(turn) for turn in turns if "reason" not in turn},
        failures={turn["contender"]: turn["reason"] for turn in turns if "reason" in turn},
        machine={turn["contender"]: Machine(turn["others"], turn["mhz"]) for turn in turns},
    )


def _measurement(turn: Mapping[str, Any]) -> Measurement:
    fields = {name: turn[name] for name in _FIELDS}
    # In JSON a missing number is null; the loss of an untrained contender is None itself.
    missing = {name for name, value in fields.items() if value is None} - {"eval_loss"}
    return Measurement.from_json(json.dumps({**fields, **dict.fromkeys(missing, math.nan)}))
