"""`tfx-tpu-trainer history`: the runs of a project."""

from __future__ import annotations

from typing import Any

import click

from tfx_tpu_trainer.cli.project_options import project_options, root_of


@click.command(short_help="Lists a project's runs.")
@project_options
@click.option("--root", metavar="DIR", help="The root of the runs, in place of a project.")
@click.option(
    "--last",
    default=3,
    show_default=True,
    type=click.IntRange(min=1),
    help="How many runs to show.",
)
def history(root: str | None, last: int, **project: Any) -> None:
    """Shows a project's newest runs, the newest last: each component's state, time and error."""
    found = root_of(root, **project)
    from tfx_tpu_trainer.runner.config import ConfigError
    from tfx_tpu_trainer.runner.history import print_history

    try:
        print_history(found, last=last)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
