"""`tfx-tpu-trainer predict`: predicts the rows of a file with a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tfx_tpu_trainer._support import file_systems
from tfx_tpu_trainer.workbench.cli.runs import (
    check_one_project,
    project_options,
    quiet_tensorflow,
    runner_extra,
)

_ENDINGS = (".csv", ".jsonl")


@click.command(short_help="Predicts for the rows of a CSV or TFRecord file.")
@click.argument("rows", metavar="ROWS", type=click.Path(path_type=Path))
@project_options
@click.option(
    "--root",
    metavar="DIR",
    help="The folder with the project's runs. Default: the config's `root`.",
)
@click.option(
    "--model",
    metavar="DIR",
    help="The folder of an exported model. Default: the one that the project has pushed last.",
)
@click.option(
    "--output",
    metavar="FILE",
    help="Writes all rows with their predictions to a .csv file, or to a .jsonl file of JSON lines.",
)
def predict(
    rows: Path, folder: str | None, name: str | None, output: str | None, **options: Any
) -> None:
    """Predicts for the rows of a file: classes and their probabilities, or numbers.

    ROWS is a file like the one that the project was made from, with a header that names the model's columns, in any
    order; it may have other columns, such as the label. Without a pushed model, the last blessed one predicts, or else
    the one that was trained last. The first rows are shown.
    """
    check_one_project(folder, name)
    if output is not None and not output.lower().endswith(_ENDINGS):
        raise click.ClickException(
            f"--output {output!r} ends in neither .csv nor .jsonl; give one of the two forms"
        )
    try:
        file_systems.check_is_utf8("path", rows)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    if not rows.is_file():
        raise click.ClickException(
            f"{rows} is not a file; give a CSV file, or a TFRecord file of tf.Examples"
        )
    with runner_extra(), quiet_tensorflow():
        from tfx_tpu_trainer.workbench.cli import predict_run

        try:
            if output is not None:
                file_systems.check_can_be_written("--output", output)
            chosen = predict_run.choose_model(folder, name, **options)
            click.echo(f"{chosen.which}: {chosen.folder}")
            predict_run.predict_rows(chosen, rows, output)
        # Click ends quietly when its output is closed, as with `| head`.
        except BrokenPipeError:
            raise
        # Each error's message is one line with the fix.
        except (OSError, ValueError) as error:
            raise click.ClickException(str(error).splitlines()[0]) from None
