"""Renders a page's sections as HTML without scripts; builds those on data, model, serving and lineage."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Mapping, Sequence

import jinja2

from tfx_tpu_trainer._support.progress import EVALUATE, REST, TRACE, TRAIN
from tfx_tpu_trainer.components.report._bar_charts import draw_bars, draw_parts
from tfx_tpu_trainer.components.report._charts import (
    Chart,
    Table,
    cut,
    number_text,
)
from tfx_tpu_trainer.components.report._run_data import (
    MEAN,
    Data,
    Distance,
    Drift,
    FeatureOfSplit,
    Lineage,
    Preflight,
    RunData,
)

_LONGEST_TEXT = 2000
_MOST_FEATURES = 30
_MOST_NAMES = 10
_MOST_BARS = 20
# A bar shorter than this part of its axis can't be read.
_SMALL = 0.1
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("bytes", 1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    """A section of a page.

    Attributes:
        title: Its heading.
        says: Its summary, in a sentence or two.
        mood: `"good"`, `"bad"`, `"warn"` or `""`.
        charts: Charts with their tables.
        tables: Caption -> table without a chart.
        code: Caption -> preformatted text, such as a diff.
        notes: Remarks below the tables.
    """

    title: str
    says: str
    mood: str = ""
    charts: tuple[Chart, ...] = ()
    tables: Mapping[str, Table] = dataclasses.field(default_factory=dict)
    code: Mapping[str, str] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()


def render_sections(
    sections: Iterable[Section | None], *, title: str, written: float, unread: Sequence[str] = ()
) -> str:
    """Renders a page of sections.

    Args:
        sections: The sections in order; `None` is skipped.
        title: Its title.
        written: When its content was gathered, in seconds since 1970.
        unread: Files that could not be read. Defaults to none.

    Returns:
        HTML.
    """
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [
                jinja2.PackageLoader("tfx_tpu_trainer.components.report", "templates"),
                jinja2.PackageLoader("tfx_tpu_trainer.preflight", "templates"),
            ]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("run.html.j2").render(
        title=title,
        written=time_text(written),
        sections=[section for section in sections if section is not None],
        unread=unread,
    )


def time_text(seconds: float) -> str:
    """Formats a time for people, in UTC."""
    time = datetime.datetime.fromtimestamp(seconds, tz=datetime.timezone.utc)
    return f"{time:%Y-%m-%d %H:%M} UTC"


def short(text: str) -> str:
    """Shortens a text for display."""
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "…"


def data_section(run: RunData) -> Section | None:
    """Builds the section on a run's data."""
    data = run.data
    if data is None:
        return None
    says = ", ".join(f"{rows:,} rows in {cut(name)}" for name, rows in data.splits.items())
    says += f"; {data.all_features:,} feature{'s' * (data.all_features != 1)}."
    changed = [line for drift in data.drift for line in _changed(drift)]
    differing = [
        (drift, [each for each in drift.distances if each.beyond > 1]) for drift in data.drift
    ]
    tables = {
        f"{cut(drift.rows)} against {cut(drift.against)}".capitalize(): _differences(drift, found)
        for drift, found in differing
        if found
    }
    notes = [*changed]
    if any(each.beyond for drift in data.drift for each in drift.distances):
        notes.append(
            "Chance explains differences that 95 of 100 random assignments of the same rows to the two do not exceed, "
            "over all features; those below 0.1 standard deviations, or 2 % of the rows, count as chance, too."
        )
    if data.features:
        tables["Features"] = _features(data)
    return Section(
        title="Data",
        says=" ".join([says, *(_compared(drift, found) for drift, found in differing)]).strip(),
        mood="warn" if changed or any(found for _, found in differing) else "",
        tables=tables,
        notes=tuple(notes),
    )


def _compared(drift: Drift, found: Sequence[Distance]) -> str:
    """Describes whether two sets of rows differ by more than chance."""
    rows, against = cut(drift.rows).capitalize(), cut(drift.against)
    if not found:
        is_known = any(each.chance is not None for each in drift.distances)
        return f"{rows} differs from {against} by no more than chance." if is_known else ""
    of, first = len(drift.distances), found[0]
    return (
        f"{rows} differs from {against} by more than chance in {len(found):,} of {of:,} "
        f"feature{'s' * (of != 1)}, most in {cut(first.feature)}."
    )


def _differences(drift: Drift, found: Sequence[Distance]) -> Table:
    shown = found[:_MOST_FEATURES]
    return Table(
        head=("feature", "what", cut(drift.rows), cut(drift.against), "apart", "by chance up to"),
        rows=tuple((cut(each.feature), cut(each.of), *_in_numbers(each)) for each in shown),
        says=_left_out(len(shown), len(found)),
    )


def _in_numbers(each: Distance) -> tuple[str, ...]:
    numbers = (each.now or 0.0, each.before or 0.0)
    apart = (each.value, each.chance or 0.0)
    if each.of == MEAN:
        return (*map(number_text, numbers), *(f"{sd:.3g} standard deviations" for sd in apart))
    return tuple(f"{share:.1%}" for share in (*numbers, *apart))


def _changed(drift: Drift) -> list[str]:
    return [
        f"Only {where} has {len(names):,} of the features: {_listed(names)}."
        for where, names in ((drift.rows, drift.new), (drift.against, drift.gone))
        if names
    ]


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(map(cut, names[:_MOST_NAMES])) + more


def _features(data: Data) -> Table:
    shown = data.features[:_MOST_FEATURES]
    return Table(
        head=("feature", "type", "missing", "typical", "range"),
        rows=tuple(
            (
                cut(feature.name),
                feature.kind,
                _missing(data, feature.by_split),
                *_values(next(iter(_largest_first(data, feature.by_split)))),
            )
            for feature in shown
            if feature.by_split
        ),
        says=_left_out(len(shown), data.all_features),
    )


def _largest_first(data: Data, by_split: Mapping[str, FeatureOfSplit]) -> list[FeatureOfSplit]:
    return [by_split[name] for name in sorted(by_split, key=lambda name: -data.splits[name])]


def _missing(data: Data, by_split: Mapping[str, FeatureOfSplit]) -> str:
    shares = [
        f"{_percent(of_split.missing / data.splits[name])} of {cut(name)}"
        for name, of_split in by_split.items()
        if of_split.missing and data.splits[name]
    ]
    return ", ".join(shares) or "none"


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 else "< 0.1%"


def _values(of_split: FeatureOfSplit) -> tuple[str, str]:
    if of_split.mean is not None and of_split.deviation is not None:
        assert of_split.least is not None
        assert of_split.greatest is not None
        return (
            f"{number_text(of_split.mean)} ± {number_text(of_split.deviation)}",
            f"{number_text(of_split.least)} to {number_text(of_split.greatest)}",
        )
    if of_split.unique is not None and of_split.unique == of_split.values:
        return "", "all different"
    if of_split.unique is not None:
        return cut(of_split.most_frequent or ""), f"{of_split.unique:,} different"
    return "", ""


def _left_out(shown: int, of: int) -> str:
    return f"{shown:,} of {of:,}; run.json has more." if shown < of else ""


def model_section(run: RunData) -> Section | None:
    """Builds the section on a run's model."""
    if not (run.layers or run.exported or run.preflight):
        return None
    tables = {}
    if run.exported:
        for graph in run.exported.meta_graphs:
            tags = ", ".join(graph.tags)
            tables[f"Signatures of [{tags}]"] = Table(
                head=("signature", "inputs", "outputs"),
                rows=tuple(
                    (
                        signature.name,
                        _signature_text(signature.inputs),
                        _signature_text(signature.outputs),
                    )
                    for signature in graph.signatures
                ),
            )
            tables[f"Ops of [{tags}]"] = Table(
                head=("where they run", "ops"),
                rows=tuple((where, f"{count:,}") for where, count in graph.ops.items()),
            )
    parameters, slots = (
        sum(getattr(layer, kind) for layer in run.layers) for kind in ("parameters", "slots")
    )
    says = ""
    if run.layers:
        says = f"{parameters:,} parameters, and {slots:,} values of the optimizer."
    if run.exported:
        graphs = " and ".join(f"[{', '.join(each.tags)}]" for each in run.exported.meta_graphs)
        size = f"{run.exported.bytes / 1e6:,.1f} MB"
        says = f"{says} Exported with {graphs}: {size}."
    charts = []
    if run.layers:
        largest = run.layers[:_MOST_BARS]
        by_layer = {layer.name: float(layer.parameters) for layer in largest if layer.parameters}
        if rest := run.layers[_MOST_BARS:]:
            by_layer[f"{len(rest)} others"] = float(sum(layer.parameters for layer in rest))
        charts.append(draw_bars("Parameters by layer", by_layer, unit="parameters"))
    mood = ""
    notes: list[str] = []
    if run.preflight:
        says += f" {_preflight_says(run.preflight)}"
        mood = "good" if all(step.ok for step in run.preflight.steps) else "bad"
        hbm, notes = _hbm(run.preflight)
        charts = [*hbm, *charts]
        tables["On the TPU"] = Table(
            head=("step", "verdict"),
            rows=tuple((cut(step.name), short(step.says)) for step in run.preflight.steps),
        )
    return Section(
        title="Model",
        says=says.strip(),
        mood=mood,
        charts=tuple(charts),
        tables=tables,
        notes=tuple(notes),
    )


def _preflight_says(preflight: Preflight) -> str:
    failed = [step for step in preflight.steps if not step.ok]
    if failed:
        return f"On {preflight.tpu} it can't run: {failed[0].name}: {short(failed[0].says)}"
    steps = ", ".join(step.name for step in preflight.steps)
    return f"It compiles for {preflight.tpu} and fits ({steps}), according to {preflight.compiler}."


def _hbm(preflight: Preflight) -> tuple[list[Chart], list[str]]:
    """Draws the steps' use of a device's memory; again, zoomed, if it is too small to see."""
    # Imported late, so a page without a preflight needs no TensorFlow.
    from tfx_tpu_trainer.preflight import bytes_text

    limits = [step.limit_bytes for step in preflight.steps if step.limit_bytes]
    needs = {
        step.name: step.by_category or {"needed in total": step.need_bytes}
        for step in preflight.steps
        if step.need_bytes
    }
    if not limits or not needs:
        return [], []
    limit, most = max(limits), max(sum(parts.values()) for parts in needs.values())
    charts = [_memory_chart("HBM of a device, up to its limit", needs, max(limit, most))]
    notes = []
    if most < limit * _SMALL:
        charts.append(_memory_chart("The same, zoomed", needs, most))
        notes.append(
            f"The largest step needs {bytes_text(most)} of {bytes_text(limit)}, {most / limit:.2%}: the second "
            "bar shows only that part of the memory."
        )
    return charts, notes


def _memory_chart(title: str, needs: Mapping[str, Mapping[str, int]], whole: int) -> Chart:
    unit, size = next(each for each in _UNITS if whole >= each[1])
    parts = {
        name: {kind: count / size for kind, count in of_step.items()}
        for name, of_step in needs.items()
    }
    return draw_parts(title, parts, unit=unit, whole=whole / size)


def _signature_text(tensors: Mapping[str, str]) -> str:
    shown = [f"{name}: {kind}" for name, kind in tensors.items()]
    if rest := shown[_MOST_NAMES:]:
        shown[_MOST_NAMES:] = [f"{len(rest):,} more"]
    return "; ".join(shown)


def serving_section(run: RunData) -> Section | None:
    """Builds the section on how the exported model serves."""
    checks = run.serving_checks
    if not checks:
        return None
    passed = sum(check.outcome == "passed" for check in checks)
    failed = sum(check.outcome == "failed" for check in checks)
    says = f"{passed} of {len(checks)} checks passed."
    if run.exported:
        requests = run.exported.warmup_requests
        says += f" A server warms up with {requests} request{'s' * (requests != 1)}."
    tables = {}
    if run.answers:
        fastest = min(run.answers, key=lambda answer: answer.median_seconds)
        says += (
            f" The checking process had an answer of {cut(fastest.signature)} for {fastest.rows} rows after "
            f"{_milliseconds(fastest.median_seconds)} ms."
        )
        tables["Latency of the check"] = Table(
            head=("signature", "rows", "first, ms", "median of the next, ms", "repeats"),
            rows=tuple(
                (
                    cut(answer.signature),
                    f"{answer.rows:,}",
                    _milliseconds(answer.first_seconds),
                    _milliseconds(answer.median_seconds),
                    f"{answer.repeats}",
                )
                for answer in run.answers
            ),
            says="In a session on the machine that trained, without a server or a network between.",
        )
    return Section(
        title="Serving",
        says=says,
        mood="bad" if failed else "good" if passed == len(checks) else "warn",
        tables={
            **tables,
            "Checks": Table(
                head=("check", "outcome", "what was found", "seconds"),
                rows=tuple(
                    (check.name, check.outcome, short(check.detail), f"{check.seconds:.1f}")
                    for check in checks
                ),
            ),
        },
    )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f}" if seconds >= 0.1 else f"{seconds * 1e3:.3g}"


# Part of a training -> its phases, in the order of a training.
_PARTS: Mapping[str, tuple[str, ...]] = {
    "imports": ("imports",),
    "checks": ("input check", "preflight", "measuring the input"),
    "trace": (TRACE,),
    "input": ("input",),
    "steps": (TRAIN,),
    "evaluations": (EVALUATE,),
    "exports": ("publish", "export"),
    "serving check": ("warm-up", "serving check"),
    "page": ("page",),
    REST: (REST,),
}


def seconds_by_part(lineage: Lineage) -> dict[str, float]:
    """Returns how long each part of a training took; together they are its phases' seconds."""
    left = dict(lineage.phase_seconds)
    parts = {
        part: sum(left.pop(name, 0.0) for name in names)
        for part, names in _PARTS.items()
        if not left.keys().isdisjoint(names)
    }
    rest = {REST: parts.pop(REST)} if REST in parts else {}
    return {**parts, **left, **rest}


def lineage_section(run: RunData) -> Section | None:
    """Builds the section on a run's origin."""
    lineage = run.lineage
    if lineage == Lineage() and not run.learning.restarts:
        return None
    says = f"It ran on {lineage.ran_on}" if lineage.ran_on else "Where it ran is unknown"
    if lineage.phase_seconds:
        says += f"; it took {sum(lineage.phase_seconds.values()):,.1f} seconds"
    tables = {
        caption: Table(
            head=head, rows=tuple((cut(name), short(value)) for name, value in values.items())
        )
        for caption, head, values in (
            (
                "Rows that went through the model",
                ("what was done", "rows"),
                {name: f"{count:,}" for name, count in lineage.rows.items()},
            ),
            ("Inputs", ("input", "artifacts"), lineage.inputs),
            ("Settings that differ from their defaults", ("setting", "value"), lineage.settings),
            ("Versions", ("package", "version"), lineage.versions),
        )
        if values
    }
    if run.learning.restarts:
        tables["Restarts"] = Table(
            head=("resumed at step", "when"),
            rows=tuple(
                (f"{restart.step:,}", time_text(restart.time)) for restart in run.learning.restarts
            ),
        )
    charts: tuple[Chart, ...] = ()
    if lineage.phase_seconds:
        rounded = {name: round(seconds, 1) for name, seconds in seconds_by_part(lineage).items()}
        charts = (draw_bars("Seconds by part", rounded, unit="seconds"),)
    notes = []
    if lineage.phase_seconds:
        notes.append(
            "Seconds are those of the process that wrote this page, after its first imports: imports "
            "are those of the module, and steps include the opening of sessions. Energy is not measured."
        )
    if lineage.code:
        notes.append(f"Code: {lineage.code}")
    if lineage.identity:
        notes.append(f"Digest of inputs, code and settings: {lineage.identity}")
    return Section(
        title="Lineage", says=f"{says}.", charts=charts, tables=tables, notes=tuple(notes)
    )
