"""A plan for embeddings, for the terminal."""

from __future__ import annotations

from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from tfx_tpu_trainer.preflight._report import bytes_text, seconds_text
from tfx_tpu_trainer.preflight.embeddings.results import EmbeddingPlan, Need

_CAVEATS = (
    "Counted on this machine by TensorFlow's published rules; nothing ran on a SparseCore.",
    (
        "Buffers are OpenXLA's estimate. The rest of the program needs HBM too: a preflight of the "
        "model reports how much."
    ),
)


def render_plan(plan: EmbeddingPlan) -> RenderableType:
    """Returns a plan as something that rich prints.

    Args:
        plan: The plan.
    """
    cores = plan.cores
    several = plan.num_slices > 1
    slices, each = (f"{plan.num_slices} slices of ", "each ") if several else ("", "")
    head = Text.assemble(
        (f"Embeddings on {slices}{plan.tpu}", "bold"),
        f"  {each}{cores.chips} chips of {cores.per_chip} SparseCores, {plan.batch_size:,} rows a step; "
        f"{plan.ids:,} ids in {plan.rows:,} rows",
    )
    return Group(
        head,
        Text(""),
        _tables(plan),
        Text(""),
        _needs(plan),
        Text(""),
        _memory(plan),
        Text(""),
        *_verdicts(plan),
        *(Text(f"* {caveat}", style="dim") for caveat in _CAVEATS),
    )


def _tables(plan: EmbeddingPlan) -> Table:
    table = _table(
        "Stacked tables",
        *("stack", "table", "rows", "padded", "width", "padded", "rotation", "optimizer"),
    )
    for each in plan.stacks:
        for number, layout in enumerate(each.stack.tables):
            table.add_row(
                _shown(each.stack.name) if number == 0 else Text(""),
                Text(layout.name),
                f"{layout.rows:,}",
                f"{layout.padded_rows:,}",
                str(layout.dim),
                str(layout.padded_dim),
                str(layout.rotation),
                each.stack.optimizer,
            )
    return table


def _needs(plan: EmbeddingPlan) -> Table:
    table = _table(
        "What batches need",
        *("stack", "of", "median", "99 %", "most", "buffer", "held out"),
    )
    for each in plan.stacks:
        rows = (
            ("ids per partition", each.ids),
            ("unique ids per partition", each.unique_ids),
            ("ids per sample, padded", each.ids_per_sample),
        )
        for number, (what, need) in enumerate(rows):
            table.add_row(
                _shown(each.stack.name) if number == 0 else Text(""),
                what,
                *map(_number, (need.median, need.high, need.most, need.buffer)),
                _held_out(need),
            )
    return table


def _memory(plan: EmbeddingPlan) -> Table:
    table = _table(
        "HBM of a chip, and the busiest chip's ids relative to the mean",
        *("stack", "tables", "activations", "lists of ids", "buffers", "in all", "busiest"),
    )
    for each in plan.stacks:
        sizes = (each.table_bytes, each.activation_bytes, each.input_bytes, each.buffer_bytes)
        table.add_row(
            _shown(each.stack.name),
            *map(bytes_text, sizes),
            bytes_text(each.hbm_bytes),
            f"{each.imbalance:.2f} x",
        )
    return table


def _verdicts(plan: EmbeddingPlan) -> list[Text]:
    fits = plan.hbm_bytes <= plan.limit_bytes
    kept = not plan.dropping_batches
    held_out = f"{plan.held_out_batches:,} held-out batches"
    settings = plan.settings()
    return [
        _verdict(
            fits,
            f"{'fits' if fits else 'does not fit'}: {bytes_text(plan.hbm_bytes)} of "
            f"{bytes_text(plan.limit_bytes)} HBM a chip",
        ),
        _verdict(
            kept,
            f"no id of {held_out} is dropped"
            if kept
            else f"{plan.dropping_batches:,} of {held_out} need more than a buffer holds: read more "
            "rows, to see larger batches",
        ),
        Text(f"  the busiest chip reads {plan.imbalance:.2f} x the bytes of the average chip"),
        *([_network(plan)] if plan.num_slices > 1 else []),
        Text(""),
        Text("tf.tpu.experimental.embedding.SparseCoreEmbeddingConfig("),
        *(Text(f"    {name}={value!r},") for name, value in settings.items()),
        Text(")"),
    ]


def _network(plan: EmbeddingPlan) -> Text:
    return Text(
        f"  each slice sends {bytes_text(plan.network_bytes)} of gradients to the others in a step, in "
        f"{seconds_text(plan.network_seconds)} or more"
    )


def _verdict(good: bool, words: str) -> Text:
    return Text.assemble(("✓ " if good else "✗ ", "green" if good else "red"), words)


def _held_out(need: Need) -> Text:
    return Text(_number(need.held_out), style="" if need.is_enough else "red")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"


def _shown(name: str) -> Text:
    """A stack of many tables has a long name, which the settings have in full."""
    return Text(name if len(name) <= 40 else f"{name[:37]}...")


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in headings:
        words = heading in ("stack", "table", "of", "optimizer")
        justify: JustifyMethod = "left" if words else "right"
        table.add_column(heading, overflow="fold", justify=justify)
    return table
