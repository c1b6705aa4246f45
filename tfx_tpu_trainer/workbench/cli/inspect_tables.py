"""The tables of `tfx-tpu-trainer inspect`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from tfx_tpu_trainer._support.terminal import standard_output, text

_SHOWN_OPS = 6
_UNITS = ("bytes", "KB", "MB", "GB")


def print_tables(found: Mapping[str, Any]) -> None:
    """Prints what `overview` has found."""
    console = standard_output()
    console.print(
        text(f"{found['path']}  ({_size(found['bytes'])} in {len(found['files'])} files)")
    )
    for meta_graph in found["meta_graphs"]:
        console.print()
        console.print(_signatures(meta_graph))
        console.print(_ops(meta_graph))
    console.print()
    console.print(text(f"Warm-up: {_warmup(found['warmup'])}"))
    if found["check"] is None:
        console.print(text("Check: none (no serving_check.json beside the model)"))
    else:
        console.print(_check(found["check"]))


def _signatures(meta_graph: Mapping[str, Any]) -> Table:
    table = Table(
        title=text(f"Tags: {', '.join(meta_graph['tags'])}", style="italic"), title_justify="left"
    )
    for heading in ("signature", "inputs", "outputs"):
        table.add_column(heading, overflow="fold")
    for name, signature in meta_graph["signatures"].items():
        table.add_row(
            *map(text, (name, _tensors(signature["inputs"]), _tensors(signature["outputs"])))
        )
    return table


def _tensors(tensors: Mapping[str, Any]) -> str:
    return "\n".join(f"{key}: {_tensor(tensor)}" for key, tensor in tensors.items())


def _tensor(tensor: Mapping[str, Any]) -> str:
    if tensor["shape"] is None:
        return f"{tensor['dtype']}<unknown rank>"
    sizes = ", ".join("?" if size is None else str(size) for size in tensor["shape"])
    return f"{tensor['dtype']}[{sizes}]"


def _ops(meta_graph: Mapping[str, Any]) -> Table:
    ops = meta_graph["ops"]
    table = Table(show_header=True)
    for heading in ("ops", "number", "which"):
        table.add_column(heading, overflow="fold")
    for label, counts in (
        ("on the TPU", ops["on_tpu"]),
        ("on the host, by outside_compilation", ops["outside_compilation"]),
        ("on the host", ops["host"]),
    ):
        table.add_row(label, str(sum(counts.values())), text(_most(counts)))
    for label, nodes in (
        ("on the host, after the TPU", ops["host_after_tpu"]),
        ("on the host, beside the TPU", ops["host_beside_tpu"]),
        ("on the TPU, which can't run them", ops["refused_by_tpu"]),
    ):
        if nodes:
            table.add_row(label, str(len(nodes)), text(_first(nodes)))
    if meta_graph["batch_sizes"]:
        sizes = ", ".join(map(str, meta_graph["batch_sizes"]))
        table.add_row("batches padded to", "", text(f"{sizes} rows"))
    return table


def _most(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return _first([f"{op} {count}" for op, count in ordered])


def _first(names: Sequence[str]) -> str:
    more = f", {len(names) - _SHOWN_OPS} more" if len(names) > _SHOWN_OPS else ""
    return ", ".join(names[:_SHOWN_OPS]) + more


def _warmup(records: Sequence[Mapping[str, Any]]) -> str:
    if not records:
        return "none"
    return ", ".join(
        f"{record['signature']} with {record['rows']} {'row' if record['rows'] == 1 else 'rows'}"
        for record in records
    )


def _check(report: Mapping[str, Any]) -> Table:
    table = Table(
        title=f"Check: {'passed' if report['passed'] else 'FAILED'}", title_justify="left"
    )
    for heading in ("check", "outcome", "detail"):
        table.add_column(heading, overflow="fold")
    for check in report["checks"]:
        table.add_row(*map(text, (check["name"], check["outcome"], check["detail"])))
    return table


def _size(count: float) -> str:
    for unit in _UNITS[:-1]:
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} {_UNITS[-1]}"
