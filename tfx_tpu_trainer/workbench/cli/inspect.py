"""`tfx-tpu-trainer inspect PATH`: shows a SavedModel's contents, and whether it passed its check."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.table import Table

from tfx_tpu_trainer._support.terminal import standard_output, text

_SHOWN_OPS = 6
_ASKED_ROWS = 32
_UNITS = ("bytes", "KB", "MB", "GB")


@click.command(short_help="Shows what an exported model contains.")
@click.argument("path")
@click.option(
    "--answers",
    is_flag=True,
    help="Runs both metagraphs on this CPU too, and compares their answers. Exits with 1 if they differ, or could "
    "not be compared.",
)
@click.option(
    "--rows",
    metavar="FILE",
    help="With --answers: a TFRecord file of tf.Examples, of which 32 are sent. Default: the warm-up requests.",
)
@click.option("--json", "as_json", is_flag=True, help="Prints one JSON object instead of tables.")
def inspect(path: str, answers: bool, rows: str | None, as_json: bool) -> None:
    """Shows a model's tags, signatures, ops on the host and the TPU, size, warm-up and check results.

    PATH is a SavedModel's folder, a folder of versions (the newest is shown) or the uri of a Model
    artifact. Without --answers nothing is loaded: it works on any machine.
    """
    if rows and not answers:
        raise click.UsageError("--rows needs --answers; add --answers")
    # Hides TensorFlow's start-up messages.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from tensorflow import errors

    from tfx_tpu_trainer.serving import compare_graphs, inputs_to_ask, overview, read_tfrecords

    try:
        found = overview(path)
        if answers:
            examples = read_tfrecords([rows], limit=_ASKED_ROWS) if rows else []
            finding = compare_graphs(found["path"], inputs_to_ask(found["path"], examples))
            found["answers"] = finding._asdict()
    except errors.OpError as error:
        reason = error.message.splitlines()[0]
        raise click.ClickException(
            f"{path}{f' or {rows}' * bool(rows)} can't be read ({reason}): give a path that you may read"
        ) from None
    except (FileNotFoundError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        _print_tables(found)
    if answers and found["answers"]["outcome"] != "passed":
        raise click.exceptions.Exit(1)


def _print_tables(found: Mapping[str, Any]) -> None:
    """Prints the result of `overview`."""
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
        console.print(text("Check: none (no serving_check.json next to the model)"))
    else:
        console.print(_check(found["check"]))
    if "answers" in found:
        outcome, detail = found["answers"]["outcome"], found["answers"]["detail"]
        console.print(text(f"Both metagraphs answer alike: {outcome}: {detail}"))


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
    from tfx_tpu_trainer.serving import TensorDescription

    return "\n".join(f"{key}: {TensorDescription(**tensor)}" for key, tensor in tensors.items())


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
        ("on the host, in the TPU's call", ops["host_beside_tpu"]),
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
