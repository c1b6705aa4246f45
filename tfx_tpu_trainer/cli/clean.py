"""`tfx-tpu-trainer clean`: what old runs have left."""

from __future__ import annotations

from typing import Any

import click

from tfx_tpu_trainer.cli.project_options import project_options, root_of


@click.command(short_help="Lists what old runs have left, and removes it.")
@project_options
@click.option("--root", metavar="DIR", help="A root, or a folder of roots, in place of a project.")
@click.option(
    "--keep",
    default=3,
    show_default=True,
    type=click.IntRange(min=1),
    help="How many complete runs to keep, the newest.",
)
@click.option("--remove", is_flag=True, help="Removes what is listed.")
def clean(root: str | None, keep: int, remove: bool, **project: Any) -> None:
    """Lists what old runs of a project have left, and removes it with --remove.

    Kept are the newest runs, those of the model that was blessed last and of the one that was pushed last, all that
    these runs have used, and each training that the same command would go on with. The folder of pushed models is
    left alone.
    """
    found = root_of(root, **project)
    from tfx_tpu_trainer.runner.clean import clean as clean_folder
    from tfx_tpu_trainer.runner.config import ConfigError

    try:
        clean_folder(found.folder, keep=keep, remove=remove)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
