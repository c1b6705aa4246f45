"""`tfx-tpu-trainer tune`: a run of a project's pipeline with its search of hyperparameters."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfx_tpu_trainer._support.imports import of_extra
from tfx_tpu_trainer.workbench.cli.runs import (
    check_one_project,
    find_project,
    run_options,
    runner_extra,
)

if TYPE_CHECKING:
    from tfx_tpu_trainer.workbench.project.project import Project


@click.command(short_help="Searches settings of a model, and trains with the best.")
@run_options
def tune(
    folder: str | None,
    name: str | None,
    config_file: Path | None,
    root: str | None,
    overrides: tuple[str, ...],
    plain: bool,
) -> None:
    """Runs a project's pipeline with TFX's Tuner, trains with the best settings that it finds, and prints them.

    The group `tune` of the config sets the metric and the number of trials; the project's search space defines the
    values to try. The same command resumes a search that was stopped. Needs the extra `tune`.

    The exit codes are those of `run`.
    """
    check_one_project(folder, name)
    with runner_extra():
        from tfx_tpu_trainer.workbench.run.local_runner import run_to_end
    with of_extra("tune", for_what="tfx-tpu-trainer tune"):
        # Imported by the run's own process.
        if importlib.util.find_spec("keras_tuner") is None:
            raise ModuleNotFoundError(name="keras_tuner")
    sys.exit(
        run_to_end(
            lambda: _project_with_search(folder, name),
            config_file=config_file,
            root=root,
            overrides=("tune.enabled=true", *overrides),
            plain=plain,
        )
    )


def _project_with_search(folder: str | None, name: str | None) -> Project:
    from tfx_tpu_trainer.workbench.project.config import ConfigError

    project = find_project(folder, name)
    if "tune" not in project.config_class().model_fields:
        raise ConfigError(
            f"the config of {str(project.folder)!r} has no group `tune`, so there is nothing to search; add "
            "`tune: TuneSettings` to its config.py and a Tuner to its pipeline.py (docs/how-to/tune.md)"
        )
    return project
