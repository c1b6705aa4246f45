"""`tfx-tpu-trainer new DIR`: a project of the user's own, from their data."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from tfx_tpu_trainer._support.messages import printable

_MOST_LINES = 20


@click.command(short_help="Writes a new project for a CSV or TFRecord file.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--data",
    metavar="FILE",
    required=True,
    type=click.Path(path_type=Path),
    help="A CSV file with a header, or a TFRecord file of tf.Examples.",
)
@click.option("--label", metavar="COLUMN", required=True, help="The column to predict.")
@click.option(
    "--task",
    type=click.Choice(["regression", "classification"]),
    help="Kind of problem. Default: inferred from the label.",
)
@click.option(
    "--schema",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A JSON file with the columns' types, as written by `bq show --schema`.",
)
@click.option(
    "--type",
    "types",
    metavar="COLUMN=KIND",
    multiple=True,
    help="What a column holds: numbers, words, dates, day-first or month-first dates, or left-out. Repeatable.",
)
def new(folder: Path, **options: Any) -> None:
    """Writes a project that trains, evaluates and pushes a model of your data.

    TFDV reads the data and finds the columns' types. DIR gets a preprocessing_fn, a wide-and-deep model_fn, a config,
    tests, a README and a Makefile; `tfx-tpu-trainer run` works in it at once. Needs the extra `new`.

    The exit code is 1 if no project can be made from the data; then nothing is written.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    # Of libraries that TFX imports.
    warnings.filterwarnings("ignore")
    from tfx_tpu_trainer.workbench.new import ScaffoldError, create_project

    try:
        decisions = create_project(folder, say=_say, **options)
    except ScaffoldError as error:
        raise click.ClickException(str(error)) from None
    label = decisions.label
    what = f"one of {len(label.classes)} classes" if label.classes else "a quantity"
    _say(f"label: {label.name} ({what})")
    _say(
        f"features: {len(decisions.numbers)} numbers, {len(decisions.dates)} dates, "
        f"{len(decisions.words)} categorical columns"
    )
    _say_dropped(decisions.dropped)
    _say(f"Wrote {folder}. To train, evaluate and push a model:")
    _say(f"  cd {folder} && tfx-tpu-trainer run")


def _say_dropped(dropped: Mapping[str, str]) -> None:
    for name, why in list(dropped.items())[:_MOST_LINES]:
        _say(f"left out: {name} ({why})")
    if len(dropped) > _MOST_LINES:
        _say(f"left out: {len(dropped) - _MOST_LINES} more columns, which README.md lists")


def _say(line: str) -> None:
    click.echo(printable(line))
