"""Prints a preflight's report on the terminal."""

import os
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tfx_tpu_trainer._support.terminal import standard_output
from tfx_tpu_trainer.preflight._input_speed import InputSpeed
from tfx_tpu_trainer.preflight._price import TrainingCost, price_text
from tfx_tpu_trainer.preflight._report import (
    PreflightReport,
    StepReport,
    bytes_text,
    count_text,
    duration_text,
    flop_text,
    seconds_text,
    share_text,
)
from tfx_tpu_trainer.preflight._step_time import Estimate
from tfx_tpu_trainer.preflight._sweep import Sweep

_SHOWN_ALLOCATIONS = 5
_SHOWN_FINDINGS = 8
_BAR = 40

FINDING_TITLES = {
    "padding": "padding to 8 x 128 tiles",
    "dynamic_shape": "shape that depends on data",
    "wide_dtype": "64-bit numbers",
    "host_op": "left on the host",
    "gradient": "gradients",
}
"""Kind of a finding -> its name in the report."""

SERIAL_INPUT = (
    "the reading left most of this machine idle: unless its map and interleave calls run in "
    "parallel (num_parallel_calls), more CPUs will not speed it up, and the hosts deliver less"
)
"""The remark on an input that uses one CPU of several."""

STAGE_TITLES = {
    "lowering": "TensorFlow can't turn it into a TPU program",
    "compiler": "the TPU compiler refuses it",
    "memory": "does not fit",
    "crash": "the TPU compiler died",
    "timeout": "the TPU compiler took too long",
    "set-up": "no TPU compiler is available",
}
"""Stage of a problem -> the outcome for the step."""


def print_report(report: PreflightReport, console: Console | None = None) -> None:
    """Prints a report.

    Args:
        report: The report.
        console: The console to print on. Defaults to `None`: the standard output, 120 columns wide if it is not a
            terminal.
    """
    console = console or standard_output()
    console.print(render_text(report))


def render_text(report: PreflightReport) -> RenderableType:
    """Returns a report as a renderable of rich."""
    replicas = f"{report.num_replicas} replica{'s' if report.num_replicas > 1 else ''}"
    if report.num_cores_per_replica > 1:
        replicas += f" of {report.num_cores_per_replica} cores"
    slices = f"{report.num_slices} slices of " if report.num_slices > 1 else ""
    chip = report.tpu_slice.chip
    head = Text.assemble(
        (f"Preflight of {report.model} for {slices}{report.tpu}", "bold"),
        f"  {replicas}, {chip.bf16_tflops:g} TFLOP/s and {chip.hbm_gb_per_s:g} GB/s a chip",
    )
    steps = [_step(step) for step in report.steps]
    measured = [Text(""), *_input(report)] if report.input is not None else []
    return Group(head, *steps, *measured, *_findings(report), Text(""), *_caveats(report))


def render_costs(costs: Sequence[TrainingCost], *, deadline: float | None) -> RenderableType:
    """Returns the costs of a training on some slices as a renderable of rich.

    Args:
        costs: The slices.
        deadline: Seconds that the training may take, or `None`.
    """
    start_up = max((each.start_up_seconds for each in costs), default=0.0)
    title = f"Cost of the training, with {duration_text(start_up)} of start-up"
    table = Table(title=title, title_justify="left")
    columns: dict[str, Callable[[TrainingCost], str]] = {
        "slice": lambda each: each.name,
        "batch size": lambda each: f"{each.batch_size:,}",
        "step": lambda each: (
            seconds_text(each.step_seconds) + (" (input)" if each.limited_by_input else "")
        ),
    }
    if any(each.epoch_cost is not None for each in costs):
        columns["an epoch"] = lambda each: price_text(each.epoch_cost or 0.0, each.currency)
    columns["the training"] = lambda each: (
        f"{duration_text(each.seconds)}, {price_text(each.cost, each.currency)}"
    )
    columns["at the slow end"] = lambda each: (
        f"{duration_text(each.slow_seconds)}, {price_text(each.slow_cost, each.currency)}"
        + (f", after {duration_text(each.queue_seconds)}" if each.queue_seconds else "")
    )
    if deadline is not None:
        columns["in time"] = lambda each: "yes" if each.meets(deadline) else "no"
    for heading in columns:
        table.add_column(heading, overflow="fold")
    for each in costs:
        table.add_row(*(Text(column(each)) for column in columns.values()))
    return table


def render_sweep(found: Sweep) -> RenderableType:
    """Returns a sweep as a renderable of rich.

    Args:
        found: The sweep.
    """
    title = f"Batch sizes of {found.model}, step {', '.join(found.steps)}"
    table = Table(title=title, title_justify="left")
    for heading in ("slice", "batch size", "outcome", "detail"):
        justify: JustifyMethod = "right" if heading == "batch size" else "left"
        table.add_column(heading, overflow="fold", justify=justify)
    for entry in found.entries:
        row = (entry.tpu, f"{entry.batch_size:,}", entry.outcome, entry.detail)
        table.add_row(*map(Text, row))
    parts: list[RenderableType] = [table]
    # With one size per slice the table already has it.
    if len(found.entries) > len(found.largest):
        parts.append(Text("Largest batch of the list that fits:", style="bold"))
        parts += [
            Text(f"{tpu}: {'none of the list fits' if size is None else f'{size:,} fits'}")
            for tpu, size in found.largest.items()
        ]
    if found.costs:
        parts += [
            render_costs(found.costs, deadline=found.deadline),
            Text(choice_text(found), style="bold"),
        ]
    return Group(*parts)


def choice_text(found: Sweep) -> str:
    """Describes in one line which slice of a sweep to take and why, or why none; empty without costs."""
    chosen = found.chosen_row
    if chosen is not None and chosen.cost is not None:
        price = price_text(chosen.cost.cost, chosen.cost.currency)
        return f"The choice: {chosen.cost.name}, {price}: {chosen.why}"
    return found.missed if found.costs else ""


def _step(step: StepReport) -> RenderableType:
    rows = "" if step.batch_size is None else f", {step.batch_size:,} rows"
    title = Text.assemble(
        ("✓ " if step.ok else "✗ ", "green" if step.ok else "red"),
        (step.name, "bold"),
        f"{rows}: ",
        step.verdict if step.problem is None else STAGE_TITLES[step.problem.stage],
    )
    parts: list[RenderableType] = [Text(""), title]
    if step.problem is not None:
        parts.append(Padding(_problem(step), (0, 0, 0, 2)))
    parts.append(Padding(_numbers(step), (0, 0, 0, 2)))
    if step.largest:
        parts.append(Padding(_allocations(step), (0, 0, 0, 2)))
    return Group(*parts)


def _problem(step: StepReport) -> RenderableType:
    problem = step.problem
    assert problem is not None
    lines = [Text(problem.message, style="red")]
    if problem.op_name:
        lines.append(Text(f"op: {problem.op_name} ({problem.op_type or 'of unknown type'})"))
    if problem.source:
        lines.append(Text(f"at: {_from_here(problem.source)}"))
    lines.append(Text(f"do: {problem.advice}"))
    if problem.details:
        lines.append(Text(problem.details, style="dim"))
    return Group(*lines)


def _numbers(step: StepReport) -> Table:
    table = _grid()
    if step.hbm_by_category and step.limit_bytes:
        table.add_row("HBM", Text.assemble(*_bar(step)))
        for name, size in step.hbm_by_category.items():
            if size:
                table.add_row("", f"{bytes_text(size)} {name}")
        if step.gap_bytes:
            table.add_row("", f"{bytes_text(step.gap_bytes)} of these are gaps between values")
    elif step.need_bytes and step.limit_bytes:
        table.add_row("HBM", f"{bytes_text(step.need_bytes)} of {bytes_text(step.limit_bytes)}")
    table.add_row(
        "parameters",
        f"{count_text(step.parameter_count)}; all variables are {bytes_text(step.variable_bytes)}",
    )
    bound = step.roofline
    if bound is not None:
        table.add_row(
            "work",
            f"{flop_text(step.flops)}, {bytes_text(step.bytes_accessed)} through HBM, "
            f"{bytes_text(step.collective_bytes)} into sums over the replicas",
        )
        if step.network_bytes:
            sent = bytes_text(step.network_bytes)
            table.add_row("", f"{sent} from each slice to the others over the network")
        spread = any(each.between == "cores" for each in step.collectives)
        for each in step.collectives if spread else ():
            table.add_row(
                "", f"{each.count} {each.kind} between {each.between}: {bytes_text(each.bytes)}"
            )
        table.add_row(
            "bounds",
            f"step ≥ {seconds_text(bound.step_seconds)}, limited by {bound.limited_by} (compute "
            f"{seconds_text(bound.compute_seconds)}, memory {seconds_text(bound.memory_seconds)}, "
            f"collectives {seconds_text(bound.collective_seconds)}"
            + (f", network {seconds_text(bound.network_seconds)})" if step.network_bytes else ")"),
        )
        if bound.examples_per_second is not None:
            where = "all slices" if step.network_bytes else "the slice"
            where = "a device" if step.name.startswith("serve") else where
            table.add_row("", f"≤ {count_text(bound.examples_per_second)} examples/s on {where}")
    if step.estimate is not None:
        table.add_row("estimate", _estimate(step.estimate))
    table.add_row(
        "took",
        f"{seconds_text(step.lowering_seconds)} to lower, "
        f"{seconds_text(step.compiling_seconds)} to compile",
    )
    return table


def _estimate(estimate: Estimate) -> str:
    rows = estimate.examples_per_second
    return (
        f"step ≈ {seconds_text(estimate.step_seconds)}"
        + ("" if rows is None else f", {count_text(rows)} examples/s")
        + f" (compute {seconds_text(estimate.compute_seconds)}, memory "
        f"{seconds_text(estimate.memory_seconds)}, collectives "
        f"{seconds_text(estimate.collective_seconds)}, between kernels "
        f"{seconds_text(estimate.launch_seconds)})"
    )


def _bar(step: StepReport) -> Iterator[str | tuple[str, str]]:
    need, limit = step.need_bytes or 0, step.limit_bytes or 1
    filled = min(_BAR, max(1, round(_BAR * need / limit)))
    yield "█" * filled, "red" if need > limit else "cyan"
    yield "░" * (_BAR - filled), "dim"
    yield f" {bytes_text(need)} of {bytes_text(limit)} ({share_text(need / limit)})"


def _allocations(step: StepReport) -> Table:
    table = Table(
        title="largest in HBM", title_justify="left", box=None, pad_edge=False, title_style="dim"
    )
    for heading in ("bytes", "kind", "shape", "op"):
        table.add_column(heading, overflow="fold", header_style="dim")
    for each in step.largest[:_SHOWN_ALLOCATIONS]:
        row = (bytes_text(each.bytes), each.category, each.shape.partition("{")[0], each.op_name)
        table.add_row(*map(Text, row))
    return table


def _findings(report: PreflightReport) -> Iterator[RenderableType]:
    groups = report.finding_groups
    if groups:
        yield Text("\nWorth a look", style="bold")
    for group in groups[:_SHOWN_FINDINGS]:
        title = FINDING_TITLES.get(group.kind, group.kind)
        heading = f"{title} ({', '.join(group.steps)}): "
        yield Text.assemble(("! ", "yellow"), (heading, "bold"), group.message)
        if group.findings[0].source:
            yield Text(f"  at: {_from_here(group.findings[0].source)}", style="dim")
    if len(groups) > _SHOWN_FINDINGS:
        yield Text(f"! {len(groups) - _SHOWN_FINDINGS} more (all are in --json and --html)")


def _input(report: PreflightReport) -> Iterator[RenderableType]:
    speed, limit = report.input, report.input_limit
    assert speed is not None
    yield Text("The training's input", style="bold")
    grid = _grid()
    grid.add_row("limit", "not known" if limit is None else str(limit))
    grid.add_row("measured", measured_text(speed))
    if limit is not None:
        grid.add_row(
            "transfer", f"{limit.transfer_share:.1%} of a step, from the hosts to the chips"
        )
    if speed.is_serial:
        grid.add_row("! serial", SERIAL_INPUT)
    yield Padding(grid, (0, 0, 0, 2))


def measured_text(speed: InputSpeed) -> str:
    """Describes in one line how an input was measured and scaled."""
    again = f", read again from its start {speed.ends:,} times" if speed.ends else ""
    return (
        f"{speed.rows:,} rows in {seconds_text(speed.seconds)} on {speed.cpus} CPUs of this machine"
        f"{again}; scaled to {speed.hosts} host{'s' if speed.hosts > 1 else ''} of "
        f"{speed.host_cpus} CPUs"
    )


def _from_here(source: str) -> str:
    """Shortens a file's path below the working directory."""
    return source.removeprefix(os.getcwd() + os.sep)


def _caveats(report: PreflightReport) -> Iterator[Text]:
    for caveat in report.caveats:
        yield Text(f"* {caveat}", style="dim")


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    return grid
