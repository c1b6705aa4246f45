"""The options by which commands find a project and its runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfx_tpu_trainer._support.imports import of_extra

if TYPE_CHECKING:
    from tfx_tpu_trainer.workbench.project.project import Project
    from tfx_tpu_trainer.workbench.project.roots import Root

_OPTIONS = (
    click.option(
        "--project", "folder", metavar="DIR", help="The project's folder. Default: the current one."
    ),
    click.option(
        "--pipeline",
        "name",
        metavar="NAME",
        help="A pipeline's import path, or its name in pipelines/; replaces --project.",
    ),
    click.option(
        "--config",
        "config_file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="The settings, a YAML file. Default: the project's config.yaml.",
    ),
)


def project_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options --project, --pipeline and --config to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def check_one_project(folder: str | None, name: str | None) -> None:
    """Checks that two options don't name two projects."""
    if folder is not None and name is not None:
        raise click.UsageError(
            f"--project {folder!r} and --pipeline {name!r} each name a project; give one of them"
        )


def find_project(folder: str | None, name: str | None) -> Project:
    """The project that the options mean: without any, that of the working directory."""
    from tfx_tpu_trainer.workbench.project.project import find_pipeline, load_project

    return find_pipeline(name) if name is not None else load_project(folder or ".")


def root_of(root: str | None, **project: Any) -> Root:
    """The root that the options mean: one of its own, or that of a project's config."""
    check_one_project(project["folder"], project["name"])
    with runner_extra():
        from tfx_tpu_trainer.workbench.project.config import ConfigError
        from tfx_tpu_trainer.workbench.project.roots import Root

    if root is not None:
        return Root.at(root)
    try:
        found = find_project(project["folder"], project["name"])
        return Root.of(found.config(config_file=project["config_file"]))
    except ConfigError as error:
        # The first of several problems.
        raise click.ClickException(f"{str(error).splitlines()[0]}; or give --root") from None


def runner_extra() -> Any:
    """Names the extra of what the runner imports."""
    return of_extra("tfx", for_what="The runner of pipelines")
