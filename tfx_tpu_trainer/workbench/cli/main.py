"""`tfx-tpu-trainer`: registers all commands; contains those on old programs and new projects."""

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

import tfx_tpu_trainer
from tfx_tpu_trainer._support.messages import printable
from tfx_tpu_trainer._support.terminal import PrintableGroup
from tfx_tpu_trainer.workbench.cli import runs
from tfx_tpu_trainer.workbench.cli.compile import compile_command
from tfx_tpu_trainer.workbench.cli.inspect import inspect
from tfx_tpu_trainer.workbench.cli.predict import predict
from tfx_tpu_trainer.workbench.cli.preflight import preflight
from tfx_tpu_trainer.workbench.cli.prove import prove

_MOST_LINES = 20


@click.group(cls=PrintableGroup)
@click.version_option(tfx_tpu_trainer.__version__, prog_name="tfx-tpu-trainer")
def main() -> None:
    """Runs pipelines that train with TpuTrainer, and examines programs, models and runs."""


@main.command(short_help="Lists the edits that a tf.estimator program needs today.")
@click.argument("paths", nargs=-1, required=True)
@click.option("--fix", is_flag=True, help="Makes the mechanical edits in the files.")
@click.option(
    "--diff",
    is_flag=True,
    help="Shows the mechanical edits as a diff; changes no file unless --fix is given.",
)
@click.option("--json", "as_json", is_flag=True, help="Prints one JSON object.")
def doctor(paths: tuple[str, ...], fix: bool, diff: bool, as_json: bool) -> None:
    """Lists what Estimator code uses: what works unchanged, and what needs which edit.

    Each of PATHS is a .py file, a notebook (.ipynb), or a folder of them. Programs are read, never
    run, and neither TensorFlow nor TFX is imported.

    The exit code is 0 if nothing needs an edit, 1 if something does, and 2 if a file can't be read.
    """
    from tfx_tpu_trainer.workbench.cli.doctor_run import run

    raise SystemExit(run(paths, fix=fix, diff=diff, as_json=as_json))


@main.command(
    short_help="Runs a tf.estimator program unchanged.",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("words", metavar="[OPTIONS] [PROGRAM] [ARGS]...", nargs=-1, type=click.UNPROCESSED)
def compat(words: Sequence[str]) -> None:
    """Runs a program that uses tf.estimator, without editing it."""
    # Replaces this process, whose imports the program would find.
    os.execv(sys.executable, [sys.executable, "-m", "tfx_tpu_trainer.compat", *words])


@main.command(short_help="Writes a new project for a CSV or TFRecord file.")
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
    # Warnings of libraries that TFX imports.
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


for _command in (
    compile_command,
    inspect,
    predict,
    preflight,
    prove,
    runs.clean,
    runs.compare,
    runs.graph,
    runs.history,
    runs.report,
    runs.run,
    runs.show,
    runs.tune,
):
    main.add_command(_command)

if __name__ == "__main__":
    main()
