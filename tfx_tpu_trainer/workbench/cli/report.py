"""`tfx-tpu-trainer report` and `compare`: one page about a training, and about some side by side."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from tfx_tpu_trainer._support import file_systems
from tfx_tpu_trainer.workbench.cli.project_options import project_options, root_of
from tfx_tpu_trainer.workbench.cli.quiet_tensorflow import quiet_tensorflow

if TYPE_CHECKING:
    from tfx_tpu_trainer.components.report import RunData


@click.command(short_help="Writes a page about a training.")
@click.argument("what", metavar="[RUN|FOLDER]", required=False)
@project_options
@click.option("--root", metavar="DIR", help="The root of the runs; replaces --project.")
@click.option(
    "--output",
    metavar="DIR",
    default=".",
    show_default="this one",
    help="The folder for run.html and run.json, on disk or in a bucket.",
)
@click.option(
    "--model-card",
    is_flag=True,
    help="Also writes model_card.json and model_card.md; keeps the answers in an existing "
    "model_card.json.",
)
def report(
    what: str | None, root: str | None, output: str, model_card: bool, **project: Any
) -> None:
    """Writes run.html, one page about a training, and run.json, its numbers.

    RUN is a name that `history` lists, or its beginning; by default the newest run. FOLDER holds the checkpoints of any
    of this package's estimators, or is a Model artifact's.
    """
    if what is not None and root is not None and _is_folder(what):
        raise click.UsageError(
            f"{what!r} is a folder, which can't be combined with --root {root!r}; leave --root out"
        )
    with quiet_tensorflow():
        _check(file_systems.check_can_be_opened, output)
        run = _gathered(what, root, project)
        from tfx_tpu_trainer.components.report import write_model_card, write_page

        try:
            paths = [write_model_card(run, output)] if model_card else []
            paths.insert(0, write_page(run, output))
        except (OSError, ValueError) as error:
            raise click.ClickException(str(error)) from None
    click.echo(f"{run.title}: {' '.join(paths)}")


@click.command(short_help="Compares trainings.")
@click.argument("whats", metavar="RUN|FOLDER RUN|FOLDER...", nargs=-1, required=True)
@project_options
@click.option("--root", metavar="DIR", help="The root of the runs; replaces --project.")
@click.option(
    "--output",
    metavar="FILE",
    default="compare.html",
    show_default=True,
    help="The page to write, on disk or in a bucket.",
)
def compare(whats: tuple[str, ...], root: str | None, output: str, **project: Any) -> None:
    """Compares trainings with the first one: settings, metrics, curves, slices.

    Each is a RUN or a FOLDER, as in `report`. Reports for each metric whether the difference exceeds noise, by a
    bootstrap over the rows; a paired one if both were evaluated on the same rows.
    """
    if len(whats) < 2:
        raise click.UsageError(f"a comparison needs at least two trainings; got only {whats[0]!r}")
    with quiet_tensorflow():
        _check(file_systems.check_can_be_written, output)
        runs = [_gathered(what, root, project) for what in whats]
        from tfx_tpu_trainer._support.whole_files import write_whole
        from tfx_tpu_trainer.components import report as reports

        comparison = reports.compare(runs)
        try:
            write_whole(output, reports.render_comparison(comparison))
        except OSError as error:
            raise click.ClickException(str(error)) from None
    for line in reports.comparison_lines(comparison):
        click.echo(line)
    click.echo(f"The page: {output}")


def _check(check: Callable[[str, str], None], output: str) -> None:
    """Checks where to write, before the reading takes its time."""
    try:
        check("--output", output)
    except ValueError as error:
        raise click.ClickException(str(error)) from None


def _gathered(what: str | None, root: str | None, project: Mapping[str, Any]) -> RunData:
    return _of_folder(what) if what and _is_folder(what) else _of_run(what, root, project)


def _is_folder(what: str) -> bool:
    # No run's name has one.
    return os.sep in what or os.path.isdir(what)


def _of_folder(folder: str) -> RunData:
    from tfx_tpu_trainer.components.report import gather_folder

    try:
        return gather_folder(folder)
    except ValueError as error:
        raise click.ClickException(str(error)) from None


def _of_run(run: str | None, root: str | None, project: Mapping[str, Any]) -> RunData:
    found = root_of(root, **project)
    from tfx_tpu_trainer.workbench.history.run_page import gather_run
    from tfx_tpu_trainer.workbench.project.config import ConfigError

    try:
        return gather_run(found, run)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
