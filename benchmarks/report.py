"""The tables of a benchmark: on the terminal, and as Markdown and JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.contenders import CONTENDERS
from benchmarks.plan import TITLES
from benchmarks.summary import METRICS, Cell, Interval, Metric, Row
from benchmarks.targets import Outcome

_COLORS = {"reached": "green", "missed": "red", "open": "yellow"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """A finished benchmark.

    Attributes:
        summaries: The rows of each model.
        outcomes: The targets that could be checked.
        baseline: The contender that the ratios divide by.
        conditions: Where and how it was measured, by name.
        runs: Every measurement or failure, in the order of the runs.
    """

    summaries: Mapping[str, Sequence[Row]]
    outcomes: Sequence[Outcome]
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
        """Returns everything that was found; a number that is missing is null."""
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
        table = Table(title="Targets", title_justify="left")
        for heading in ("model", "target", "found", ""):
            table.add_column(heading)
        for each in self.outcomes:
            table.add_row(
                TITLES[each.target.model],
                each.target.describe(),
                interval_text(each.ratio),
                f"[{_COLORS[each.verdict]}]{each.verdict}",
            )
        return table


def targets_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """Returns the Markdown table of targets."""
    rows = (
        f"| {TITLES[each.target.model]} | {each.target.describe()} "
        f"| {interval_text(each.ratio)} | {each.verdict} |"
        for each in outcomes
    )
    return ["| model | target | found | |", "|---|---|---|---|", *rows]


def text_of(cell: Cell, metric: Metric) -> str:
    """Shows a number, its ratio to the baseline's and the ratio's interval: `5,120 (2.05x, 1.98-2.11)`."""
    if math.isnan(cell.median):
        return "-"
    text = f"{cell.median:,.{metric.digits}f}"
    if math.isnan(cell.ratio.value):
        return text
    known = cell.ratio.low < cell.ratio.high
    between = f", {_between(cell.ratio)}" if known else ""
    return f"{text} ({cell.ratio.value:.2f}x{between})"


def interval_text(ratio: Interval) -> str:
    """Shows a ratio and its interval: `2.05 (1.98-2.11)`."""
    if math.isnan(ratio.low):
        return f"{_number(ratio.value)} (one round)"
    return f"{_number(ratio.value)} ({_between(ratio)})"


def _between(ratio: Interval) -> str:
    return f"{_number(ratio.low)}-{_number(ratio.high)}"


def _number(value: float) -> str:
    """Shows a ratio, or the number that a target without one is of."""
    return f"{value:.2f}" if value < 1000 else f"{value:,.0f}"


def losses_line(rows: Sequence[Row]) -> str:
    """Says whether the contenders trained the same thing."""
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
