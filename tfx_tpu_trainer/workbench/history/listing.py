"""Lists and compares a root's runs in a terminal.

Each row has the gate's verdict, key metrics, changes since the previous run, and the duration, all read from ML
Metadata and the runs' logs without importing TensorFlow or TFX.
"""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_metadata
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tfx_tpu_trainer._support.progress import duration
from tfx_tpu_trainer._support.terminal import standard_output
from tfx_tpu_trainer.components import report
from tfx_tpu_trainer.components.report import Section
from tfx_tpu_trainer.workbench.history.report import was_blessed
from tfx_tpu_trainer.workbench.history.summary import (
    began,
    failure_of,
    log_of,
    program,
    seen_from_outside,
    short_path,
    state_of,
)
from tfx_tpu_trainer.workbench.project import metadata
from tfx_tpu_trainer.workbench.project.metadata import NodeStatus, State
from tfx_tpu_trainer.workbench.project.roots import Root, short_name

NONE = "–"
_MOST_METRICS = 3
_WIDE = 110
_METRIC = "eval_"
_STYLES = {"blessed": "green", "not blessed": "yellow", "failed": "red", "killed": "red"}
# Config settings for the places of a run's files, which do not affect its model.
_PLACES = ("root", "metadata_path", "serving_dir")
# Execution properties that describe the user's code, and the files of examples.
_CODE = ("module_hash", "module_path", "custom_config.code")
_DATA = "input_fingerprint"

# Component -> output key -> artifact.
_Outputs = Mapping[str, Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRow:
    """A run's row in the list."""

    name: str
    # The gate's verdict; for a run that failed or still runs, its state.
    verdict: str
    # The deciding metrics.
    metrics: Mapping[str, float]
    # Differences from the previous run, in words; None for the first run.
    changed: tuple[str, ...] | None
    seconds: float
    # Why it failed, if it did.
    failure: str | None


def read_rows(root: Root, store: ml_metadata.MetadataStore, *, last: int) -> list[RunRow]:
    """Reads a root's newest runs, the newest last."""
    rows = []
    before: _Made | None = None
    names = metadata.run_names(store)
    # One more run: the oldest row also shows its changes.
    for number, name in enumerate(names[-last - 1 :]):
        statuses = seen_from_outside(metadata.node_statuses(store, name).values(), root.folder)
        outputs = {status.node: metadata.outputs(store, status.execution_id) for status in statuses}
        made = _Made.of(root, store, name, statuses, outputs)
        if number or len(names) <= last:
            rows.append(_row(name, statuses, outputs, made, before))
        before = made
    return rows


def print_history(root: Root, *, last: int) -> None:
    """Prints a root's newest runs, the newest last."""
    console = standard_output(width=140)
    rows = read_rows(root, root.store(), last=last)
    if not rows:
        return
    # Changed settings with their values need this width next to the other columns.
    has_room = console.width >= _WIDE
    console.print(_table(rows, with_changes=has_room))
    for row in rows:
        if not has_room:
            line = Text(f"{short_name(row.name)}: ", style="dim")
            console.print(line.append(changes_text(row, "; "), style="not dim"))
        if row.failure is not None:
            console.print(Text(f"{short_name(row.name)}: {row.failure}", style="red"))
    command, where = program("tfx-tpu-trainer"), short_path(root.folder)
    for words in (f"show --root {where} {short_name(rows[-1].name)}", f"compare --root {where}"):
        if words.startswith("show") or len(rows) > 1:
            console.print(Text(f"{command} {words}", style="dim"), soft_wrap=True)


def _table(rows: Sequence[RunRow], *, with_changes: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("run", no_wrap=True)
    table.add_column("model", no_wrap=True)
    names = metric_names(rows)
    for name in names:
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("took", justify="right", no_wrap=True)
    if with_changes:
        table.add_column("changed", overflow="fold")
    for row in rows:
        table.add_row(
            short_name(row.name),
            Text(row.verdict, style=_STYLES.get(row.verdict, "")),
            *(metric_text(row, name) for name in names),
            duration(row.seconds),
            *([changes_text(row, "\n")] if with_changes else []),
        )
    return table


def metric_names(rows: Sequence[RunRow]) -> list[str]:
    """Returns the deciding metrics of the newest run that has any."""
    return list(dict.fromkeys(name for row in reversed(rows) for name in row.metrics))[
        :_MOST_METRICS
    ]


def metric_text(row: RunRow, name: str) -> str:
    """Formats a run's metric; a dash if it has none."""
    return f"{row.metrics[name]:.4f}" if name in row.metrics else NONE


def changes_text(row: RunRow, separator: str) -> str:
    """Describes a run's changes."""
    if row.changed is None:
        return "first run"
    return separator.join(row.changed) or "nothing"


def _row(
    name: str,
    statuses: Sequence[NodeStatus],
    outputs: _Outputs,
    made: "_Made",
    before: "_Made | None",
) -> RunRow:
    state, failure = state_of(statuses), failure_of(statuses)
    by_key = {key: each for of_node in outputs.values() for key, each in of_node.items()}
    words = {True: "blessed", False: "not blessed", None: "not judged"}
    # An Evaluator without thresholds also has a blessing, which says nothing.
    judged = [was_blessed(of_node.get("blessing")) for of_node in outputs.values()]
    verdict = words[next((blessed for blessed in judged if blessed is not None), None)]
    why = ": ".join(filter(None, (failure.node, failure.message))) if failure else None
    return RunRow(
        name=name,
        verdict=verdict if state is State.COMPLETE else state.value,
        metrics=_key_metrics(by_key.get("model"), made.properties),
        changed=None if before is None else tuple(_changes(before, made)),
        seconds=sum(status.seconds for status in statuses),
        failure=why,
    )


def _key_metrics(model: Any, properties: Mapping[str, Mapping[str, str]]) -> dict[str, float]:
    """Returns a model's deciding metrics: the gate's, the best checkpoint's, or else the first ones."""
    if model is None:
        return {}
    found = {
        key.removeprefix(_METRIC): _number(value)
        for key, value in sorted(model.custom_properties.items())
        if key.startswith(_METRIC)
    }
    # A key is `eval_config.metrics_specs.0.thresholds.<metric>.<kind>...`.
    deciding = [
        name
        for of_node in properties.values()
        for key, value in of_node.items()
        for name in found
        if f".thresholds.{name}." in key or (key == "best_metric" and value == name)
    ]
    return {name: found[name] for name in dict.fromkeys(deciding or sorted(found))}


def _number(value: Any) -> float:
    kind = value.WhichOneof("value")
    # A metric that is not finite is stored as text.
    return float(getattr(value, kind)) if kind else math.nan


@dataclasses.dataclass(frozen=True)
class _Made:
    """The settings and data of a run."""

    # Setting -> value in the config; None for a run without a log, such as another runner's.
    config: Mapping[str, str] | None
    # Component -> property of its execution -> value.
    properties: Mapping[str, Mapping[str, str]]

    @classmethod
    def of(
        cls,
        root: Root,
        store: ml_metadata.MetadataStore,
        run: str,
        statuses: Sequence[NodeStatus],
        outputs: _Outputs,
    ) -> "_Made":
        # Read from the artifacts: a cached component does not record it.
        data = {
            node: {_DATA: artifact.custom_properties[_DATA].string_value}
            for node, of_node in outputs.items()
            for artifact in of_node.values()
            if _DATA in artifact.custom_properties
        }
        nodes = {status.execution_id: status.node for status in statuses}
        executions = store.get_executions_by_id(list(nodes)) if nodes else []
        return cls(
            config=settings_of(root, run, statuses),
            properties={
                nodes[execution.id]: dict(
                    each
                    for name, value in sorted(execution.custom_properties.items())
                    for each in _flat(name, _read(getattr(value, value.WhichOneof("value"))))
                )
                | data.get(nodes[execution.id], {})
                for execution in executions
            },
        )


def settings_of(root: Root, run: str, statuses: Sequence[NodeStatus]) -> dict[str, str] | None:
    """Returns a run's config settings by their `run --set` names; None without a log."""
    folder = log_of(root, run, began(statuses))
    config = folder / "config.json" if folder is not None else None
    if config is None or not config.exists():
        return None
    try:
        settings = json.loads(config.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return dict(
        each
        for name, value in settings.items()
        if name not in _PLACES
        for each in _flat(name, value)
    )


def _read(value: Any) -> Any:
    """Parses a property that is JSON."""
    if isinstance(value, str) and value.startswith("{"):
        try:
            return json.loads(value)
        except ValueError:
            pass
    return value


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yields a setting, or those nested in it, with dotted names."""
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _flat(f"{name}.{key}", each)
    else:
        yield name, value if isinstance(value, str) else json.dumps(value)


def _changes(before: _Made, now: _Made) -> Iterator[str]:
    """Yields a run's differences from the previous one, in words."""
    both = before.config is not None and now.config is not None
    if before.config is not None and now.config is not None:
        yield from _differences(before.config, now.config)
    for node in now.properties:
        if node not in before.properties:
            # One of the two runs has not reached this component.
            continue
        one, other = before.properties[node], now.properties[node]
        if any(one.get(name) != other.get(name) for name in _CODE):
            yield f"code of {node}"
        if one.get(_DATA) != other.get(_DATA):
            yield f"data of {node}"
        if not both:
            rest = [
                {name: value for name, value in each.items() if name not in (*_CODE, _DATA)}
                for each in (one, other)
            ]
            yield from (f"{node}.{line}" for line in _differences(*rest))


def _differences(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in dict.fromkeys((*now, *before)):
        one, other = (_shown(each.get(name)) for each in (before, now))
        if one != other:
            yield f"{name} {one} → {other}"


def _shown(value: str | None) -> str:
    return NONE if value in (None, "null") else str(value) or "''"


_DIFF = {"+": "green", "-": "red", "@": "cyan"}


def print_comparison(sections: Sequence[Section]) -> None:
    """Prints the page's tables of differences between runs."""
    console = standard_output(width=140)
    for section in sections:
        if section.charts and not section.tables:
            continue
        style = {"warn": "yellow"}.get(section.mood, "")
        title = Text(section.title, style="bold")
        console.print(title.append(f"  {section.says}".rstrip(), style=f"not bold {style}".strip()))
        for table in section.tables.values():
            _print_table(console, table)
        for caption, text in section.code.items():
            console.print(Text(caption, style="italic"))
            for line in text.splitlines():
                console.print(Text(line, style=_DIFF.get(line[:1], "")), soft_wrap=True)


def _print_table(console: Console, table: report.Table) -> None:
    shown = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for title in table.head:
        shown.add_column(Text(title), overflow="fold")
    for row in table.rows:
        shown.add_row(*map(Text, row))
    console.print(shown)
    if table.says:
        console.print(Text(table.says, style="dim"))
