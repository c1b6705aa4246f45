"""`tfx-tpu-trainer clean`: what old runs have left."""

from __future__ import annotations

from typing import Any

import click

from tfx_tpu_trainer.workbench.cli.project_options import project_options, root_of


@click.command(short_help="Lists the files that old runs left behind, and removes them.")
@project_options
@click.option(
    "--root",
    metavar="DIR",
    help="The root of a project's runs, or a folder of such roots; replaces --project.",
)
@click.option(
    "--keep",
    default=3,
    show_default=True,
    type=click.IntRange(min=1),
    help="Number of complete runs to keep, counted from the newest.",
)
@click.option("--remove", is_flag=True, help="Removes the listed files.")
def clean(root: str | None, keep: int, remove: bool, **project: Any) -> None:
    """Lists the files that a project's old runs left behind; --remove deletes them.

    Keeps the newest runs, the runs of the last blessed and the last pushed model, everything that these runs used, and
    each unfinished training that the same command would resume. Never touches the folder of pushed models.
    """
    found = root_of(root, **project)
    from tfx_tpu_trainer.workbench.history.clean import clean as clean_folder
    from tfx_tpu_trainer.workbench.project.config import ConfigError

    try:
        clean_folder(found.folder, keep=keep, remove=remove)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
