"""`tfx-tpu-trainer show RUN`: what came out of a run."""

from __future__ import annotations

from typing import Any

import click

from tfx_tpu_trainer.workbench.cli.project_options import project_options, root_of
from tfx_tpu_trainer.workbench.cli.quiet_tensorflow import quiet_tensorflow


@click.command(short_help="Shows the results of a run.")
@click.argument("run", required=False)
@project_options
@click.option("--root", metavar="DIR", help="The root of the runs; replaces --project.")
def show(run: str | None, root: str | None, **project: Any) -> None:
    """Shows the results of RUN, or of the newest run, as its summary did.

    RUN is a name that `history` lists, or its beginning. Everything is read again from ML Metadata and the artifacts.
    """
    found = root_of(root, **project)
    with quiet_tensorflow():
        from tfx_tpu_trainer.workbench.history.show import print_run
        from tfx_tpu_trainer.workbench.project.config import ConfigError

        try:
            print_run(found, run)
        except ConfigError as error:
            raise click.ClickException(str(error)) from None
