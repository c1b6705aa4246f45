"""`tfx-tpu-trainer history`: the runs of a project."""

from __future__ import annotations

from typing import Any

import click

from tfx_tpu_trainer.workbench.cli.project_options import project_options, root_of
from tfx_tpu_trainer.workbench.cli.quiet_tensorflow import quiet_tensorflow


@click.command(short_help="Lists a project's runs.")
@project_options
@click.option("--root", metavar="DIR", help="The root of the runs; replaces --project.")
@click.option(
    "--last",
    default=3,
    show_default=True,
    type=click.IntRange(min=1),
    help="Number of runs to show.",
)
@click.option(
    "--html",
    metavar="FILE",
    help="Writes a page instead that compares the runs: settings, metrics with intervals, curves, "
    "slices.",
)
def history(root: str | None, last: int, html: str | None, **project: Any) -> None:
    """Shows a project's newest runs, the newest last: each component's state, time and error."""
    found = root_of(root, **project)
    from tfx_tpu_trainer.workbench.project.config import ConfigError

    try:
        if html is None:
            from tfx_tpu_trainer.workbench.history.history import print_history

            print_history(found, last=last)
            return
        from tfx_tpu_trainer._support.whole_files import write_whole

        with quiet_tensorflow():
            from tfx_tpu_trainer.workbench.history.history_page import history_page

            write_whole(html, history_page(found, last=last))
    except (ConfigError, OSError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"The page: {html}")
