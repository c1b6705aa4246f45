"""The parts of a run's page about the model itself: its layers, graphs and memory, and how it is served."""

from __future__ import annotations

from collections.abc import Mapping

from tfx_tpu_trainer.components.report._charts import Chart, Table, cut, draw_bars, draw_parts
from tfx_tpu_trainer.components.report._html import Section, short
from tfx_tpu_trainer.components.report._run_data import Preflight, RunData
from tfx_tpu_trainer.preflight import bytes_text

_MOST_BARS = 20
# A bar of less than this part of its axis can't be read.
_SMALL = 0.1
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("bytes", 1))


def model_section(run: RunData) -> Section:
    """Arranges what a run's model is."""
    tables = {}
    if run.exported:
        for graph in run.exported.meta_graphs:
            tags = ", ".join(graph.tags)
            tables[f"Signatures of [{tags}]"] = Table(
                head=("signature", "inputs", "outputs"),
                rows=tuple(
                    (signature.name, _listed(signature.inputs), _listed(signature.outputs))
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
    says = "No checkpoint and no exported model were found."
    if run.layers:
        says = f"{parameters:,} parameters, and {slots:,} values of the optimizer."
    if run.exported:
        graphs = " and ".join(f"[{', '.join(each.tags)}]" for each in run.exported.meta_graphs)
        size = f"{run.exported.bytes / 1e6:,.1f} MB"
        says = f"{says if run.layers else ''} Exported with {graphs}: {size}.".strip()
    charts = []
    if run.layers:
        largest = run.layers[:_MOST_BARS]
        by_layer = {layer.name: float(layer.parameters) for layer in largest}
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
        says=says,
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
    return f"It compiles for {preflight.tpu} and fits ({steps}), says {preflight.compiler}."


def _hbm(preflight: Preflight) -> tuple[list[Chart], list[str]]:
    """Draws what the steps need of a device's memory, and again where that is too little to be seen."""
    limits = [step.limit_bytes for step in preflight.steps if step.limit_bytes]
    needs = {
        step.name: step.by_category or {"needed in all": step.need_bytes}
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


def _listed(tensors: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {kind}" for name, kind in tensors.items())


def serving_section(run: RunData) -> Section:
    """Arranges what a run's exported model does in a server's place."""
    checks = run.serving_checks
    if not checks:
        return Section(title="Serving", says="The exported model was not checked.")
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
