"""`tfx-tpu-trainer run`: a project's pipeline, on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tfx_tpu_trainer.workbench.cli.project_options import (
    check_one_project,
    find_project,
    project_options,
    runner_extra,
)


@click.command(short_help="Runs a project's pipeline on this machine.")
@project_options
@click.option(
    "--root",
    metavar="DIR",
    help="The folder for everything that the run writes. Default: the config's `root`.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Overrides one setting; repeatable.",
)
@click.option("--plain", is_flag=True, help="Prints plain lines instead of a live display.")
def run(
    folder: str | None,
    name: str | None,
    config_file: Path | None,
    root: str | None,
    overrides: tuple[str, ...],
    plain: bool,
) -> None:
    """Runs a project's pipeline on this machine.

    A project is a folder with config.yaml and pipeline.py (docs/pipelines.md).

    The exit code is 0 if the run ended, whether or not its model was blessed, 1 if a component failed, 2 if nothing
    ran, and 130 if Ctrl-C stopped it.
    """
    check_one_project(folder, name)
    with runner_extra():
        from tfx_tpu_trainer.workbench.run.local_runner import run_to_end

    sys.exit(
        run_to_end(
            lambda: find_project(folder, name),
            config_file=config_file,
            root=root,
            overrides=overrides,
            plain=plain,
        )
    )
