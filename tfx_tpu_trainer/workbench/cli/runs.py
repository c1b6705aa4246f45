"""The commands on a project's runs: run, tune, history, show, graph, clean, report and compare."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfx_tpu_trainer._support import file_systems
from tfx_tpu_trainer._support.imports import of_extra
from tfx_tpu_trainer._support.messages import errors_only

if TYPE_CHECKING:
    from tfx_tpu_trainer.components.report import RunData
    from tfx_tpu_trainer.workbench.history.graph import Graph
    from tfx_tpu_trainer.workbench.project.project import Project
    from tfx_tpu_trainer.workbench.project.roots import Root

_PROJECT_OPTIONS = (
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

set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Overrides one setting, such as trainer.train_steps=500; repeatable.",
)

_RUN_OPTIONS = (
    click.option(
        "--root",
        metavar="DIR",
        help="The folder for everything that the run writes. Default: the config's `root`.",
    ),
    set_option,
    click.option("--plain", is_flag=True, help="Prints plain lines instead of a live display."),
)

_root_option = click.option(
    "--root", metavar="DIR", help="The root of the runs; replaces --project."
)

_SUFFIXES = {"mermaid": "mmd", "dot": "dot"}
_STDOUT = "-"


def project_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options --project, --pipeline and --config to a command."""
    for option in reversed(_PROJECT_OPTIONS):
        command = option(command)
    return command


def _run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of a local run, including the project's, to a command."""
    for option in reversed(_RUN_OPTIONS):
        command = option(command)
    return project_options(command)


def check_one_project(folder: str | None, name: str | None) -> None:
    """Checks that two options do not name different projects."""
    if folder is not None and name is not None:
        raise click.UsageError(
            f"--project {folder!r} and --pipeline {name!r} each name a project; give one of them"
        )


def find_project(folder: str | None, name: str | None) -> Project:
    """Returns the project of the options; defaults to that of the working directory."""
    from tfx_tpu_trainer.workbench.project.project import find_pipeline, load_project

    return find_pipeline(name) if name is not None else load_project(folder or ".")


def root_of(root: str | None, **project: Any) -> Root:
    """Returns the root of the options: given directly, or by a project's config."""
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
        # Only the first of several problems.
        raise click.ClickException(f"{str(error).splitlines()[0]}; or give --root") from None


def runner_extra() -> Any:
    """Names the extra for the runner's imports."""
    return of_extra("tfx", for_what="The runner of pipelines")


@contextlib.contextmanager
def _in_one_line(*kinds: type[Exception]) -> Iterator[None]:
    """Ends the command with the message of an expected error."""
    try:
        yield
    except kinds as error:
        raise click.ClickException(str(error)) from None


@contextlib.contextmanager
def quiet_tensorflow() -> Iterator[None]:
    """Silences TensorFlow's start-up messages, and libraries' warnings of deprecated versions.

    The block imports what it needs: nothing of TensorFlow may have been imported before.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    # Transform logs with absl.
    with errors_only("tensorflow", "absl"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@click.command(short_help="Runs a project's pipeline on this machine.")
@_run_options
@click.option("--check", is_flag=True, help="Ends with exit code 3 if the model is not blessed.")
def run(folder: str | None, name: str | None, **options: Any) -> None:
    """Runs a project's pipeline on this machine.

    A project is a folder with config.yaml and pipeline.py (docs/pipelines.md).

    The exit code is 0 if the run ended, whether or not its model was blessed, 1 if a component failed, 2 if nothing
    ran, 130 if Ctrl-C stopped it, and with --check 3 if the gate did not bless the model.
    """
    check_one_project(folder, name)
    with runner_extra():
        from tfx_tpu_trainer.workbench.run.local_runner import run_to_end

    sys.exit(run_to_end(lambda: find_project(folder, name), **options))


@click.command(short_help="Searches settings of a model, and trains with the best.")
@_run_options
def tune(folder: str | None, name: str | None, overrides: tuple[str, ...], **options: Any) -> None:
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
    overrides = ("tune.enabled=true", *overrides)
    sys.exit(run_to_end(lambda: _project_with_search(folder, name), overrides=overrides, **options))


def _project_with_search(folder: str | None, name: str | None) -> Project:
    from tfx_tpu_trainer.workbench.project.config import ConfigError

    project = find_project(folder, name)
    if "tune" not in project.config_class().model_fields:
        raise ConfigError(
            f"the config of {str(project.folder)!r} has no group `tune`, so there is nothing to search; add "
            "`tune: TuneSettings` to its config.py and a Tuner to its pipeline.py (docs/how-to/tune.md)"
        )
    return project


@click.command(short_help="Lists a project's runs.")
@project_options
@_root_option
@click.option(
    "--last",
    default=10,
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
    """Shows a project's newest runs, the newest last: one per row, with the gate's verdict and the changes."""
    found = root_of(root, **project)
    from tfx_tpu_trainer.workbench.project.config import ConfigError

    with _in_one_line(ConfigError, OSError):
        if html is None:
            from tfx_tpu_trainer.workbench.history.listing import print_history

            print_history(found, last=last)
            return
        from tfx_tpu_trainer._support.whole_files import write_whole

        with quiet_tensorflow():
            from tfx_tpu_trainer.workbench.history.pages import history_page

            write_whole(html, history_page(found, last=last))
    click.echo(f"The page: {html}")


@click.command(short_help="Shows the results of a run.")
@click.argument("run", required=False)
@project_options
@_root_option
def show(run: str | None, root: str | None, **project: Any) -> None:
    """Shows the results of RUN, or of the newest run, like its summary, and where its artifacts are.

    RUN is a name that `history` lists, or its beginning.
    """
    found = root_of(root, **project)
    with quiet_tensorflow():
        from tfx_tpu_trainer.workbench.history.summary import print_run
        from tfx_tpu_trainer.workbench.project.config import ConfigError

        with _in_one_line(ConfigError):
            print_run(found, run)


class _Format(click.Choice):
    """The formats of a diagram."""

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        if value == "svg":
            self.fail(
                "svg is no longer supported; give dot, and draw it with Graphviz: "
                "tfx-tpu-trainer graph --format dot --output - | dot -Tsvg",
                param,
                ctx,
            )
        return str(super().convert(value, param, ctx))


@click.command(short_help="Draws a pipeline, or a run of it.")
@click.argument("run", metavar="[RUN]", required=False)
@project_options
@_root_option
@click.option("--last", is_flag=True, help="Draws the newest run.")
@click.option(
    "--format",
    "form",
    type=_Format(tuple(_SUFFIXES)),
    default="mermaid",
    show_default=True,
    help="mermaid: a diagram that Markdown shows; dot: Graphviz's language.",
)
@click.option(
    "--output",
    metavar="FILE",
    show_default="graph.mmd or graph.dot",
    help=f"The file to write; {_STDOUT} is standard output.",
)
def graph(
    run: str | None, root: str | None, last: bool, form: str, output: str | None, **project: Any
) -> None:
    """Draws a project's pipeline: its components and the artifacts they exchange.

    With RUN (a name that `history` lists, or its beginning) or --last, draws a run: which components ran, came from the
    cache, failed or never started.
    """
    if run is not None and last:
        raise click.UsageError(f"{run!r} and --last each name a run; give one of them")
    if root is not None and run is None and not last:
        raise click.UsageError(f"--root {root!r} contains several runs; name one, or give --last")
    if run is None and not last:
        drawn = _graph_of_project(project)
    else:
        found = root_of(root, **project)
        from tfx_tpu_trainer.workbench.history.graph import graph_of_run
        from tfx_tpu_trainer.workbench.project.config import ConfigError

        with _in_one_line(ConfigError):
            drawn = graph_of_run(found, run)
    from tfx_tpu_trainer._support.whole_files import write_whole
    from tfx_tpu_trainer.workbench.history.graph import FORMATS

    text = FORMATS[form](drawn)
    if output == _STDOUT:
        click.echo(text, nl=False)
        return
    path = output or f"graph.{_SUFFIXES[form]}"
    try:
        write_whole(path, text)
    except OSError as error:
        reason = error.strerror or str(error)
        raise click.ClickException(f"--output {path!r} can't be written: {reason}") from None
    click.echo(f"{drawn.name}: {path}")


def _graph_of_project(project: dict[str, Any]) -> Graph:
    check_one_project(project["folder"], project["name"])
    with runner_extra():
        from tfx_tpu_trainer.workbench.history.graph import graph_of_pipeline
        from tfx_tpu_trainer.workbench.project.config import ConfigError
    try:
        found = find_project(project["folder"], project["name"])
        config = found.config(config_file=project["config_file"])
    except ConfigError as error:
        raise click.ClickException(str(error).splitlines()[0]) from None
    with quiet_tensorflow(), _in_one_line(ConfigError):
        return graph_of_pipeline(found.declared_pipeline(config))


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
    from tfx_tpu_trainer.workbench.history.cleanup import clean as clean_folder
    from tfx_tpu_trainer.workbench.project.config import ConfigError

    with _in_one_line(ConfigError):
        clean_folder(found.folder, keep=keep, remove=remove)


@click.command(short_help="Writes a page about a training.")
@click.argument("what", metavar="[RUN|FOLDER]", required=False)
@project_options
@_root_option
@click.option(
    "--output",
    metavar="DIR",
    show_default="reports/ below the root; for a FOLDER this one",
    help="The folder for run.html and run.json, on disk or in a bucket.",
)
@click.option(
    "--model-card",
    is_flag=True,
    help="Also writes model_card.json and model_card.md; keeps the answers in an existing "
    "model_card.json.",
)
def report(
    what: str | None, root: str | None, output: str | None, model_card: bool, **project: Any
) -> None:
    """Writes run.html, a page about a training, and run.json with its numbers.

    RUN is a name that `history` lists, or its beginning; by default the newest run. FOLDER contains the checkpoints of
    any of this package's estimators, or is a Model artifact's.
    """
    if what is not None and root is not None and _is_folder(what):
        raise click.UsageError(
            f"{what!r} is a folder, which can't be combined with --root {root!r}; leave --root out"
        )
    with quiet_tensorflow():
        # Checked before the slow reading.
        with _in_one_line(ValueError):
            file_systems.check_can_be_opened("--output", output or ".")
        if what is not None and _is_folder(what):
            run, page, card = _gathered(what), output or ".", output or "."
        else:
            found = root_of(root, **project)
            from tfx_tpu_trainer.workbench.history.pages import read_report
            from tfx_tpu_trainer.workbench.history.summary import open_run
            from tfx_tpu_trainer.workbench.project.config import ConfigError

            with _in_one_line(ConfigError):
                _, name, _ = open_run(found, what)
                run = read_report(found, name)
            # One card for all runs, which keeps people's answers.
            page = output or str(found.report_folder(name))
            card = output or str(found.reports)
        from tfx_tpu_trainer.components.report import write_model_card, write_page

        with _in_one_line(OSError, ValueError):
            paths = [write_model_card(run, card)] if model_card else []
            paths.insert(0, write_page(run, page))
    click.echo(f"{run.title}: {' '.join(paths)}")


@click.command(short_help="Compares trainings.")
@click.argument("whats", metavar="[RUN|FOLDER RUN|FOLDER...]", nargs=-1)
@project_options
@_root_option
@click.option(
    "--output",
    metavar="FILE",
    show_default="reports/compare.html below the root; for FOLDERs compare.html",
    help="The page to write, on disk or in a bucket.",
)
def compare(whats: tuple[str, ...], root: str | None, output: str | None, **project: Any) -> None:
    """Compares trainings with the first one: metrics, settings, code, data, curves, slices.

    Each is a RUN or a FOLDER, as in `report`; by default the last two runs that trained a model. Reports for each
    metric whether the difference exceeds noise, by a bootstrap over the rows; a paired one if both were evaluated on
    the same rows.
    """
    if len(whats) == 1:
        raise click.UsageError(
            f"a comparison needs at least two trainings; got only {whats[0]!r}; give "
            "another, or none for the last two runs"
        )
    with quiet_tensorflow():
        if output is not None:
            with _in_one_line(ValueError):
                file_systems.check_can_be_written("--output", output)
        runs, where = _to_compare(whats, root, project)
        from tfx_tpu_trainer._support.whole_files import write_whole
        from tfx_tpu_trainer.components import report as reports
        from tfx_tpu_trainer.workbench.history.listing import print_comparison

        comparison = reports.compare(runs)
        sections = reports.comparison_sections(comparison)
        output = output or os.path.join(where, "compare.html")
        with _in_one_line(OSError):
            write_whole(output, reports.render_comparison(comparison, sections))
    print_comparison(sections)
    click.echo(f"The page: {output}")


def _to_compare(
    whats: tuple[str, ...], root: str | None, project: dict[str, Any]
) -> tuple[list[RunData], str]:
    """Returns trainings, and a folder for their page."""
    if whats and all(map(_is_folder, whats)):
        return [_gathered(what) for what in whats], "."
    found = root_of(root, **project)
    from tfx_tpu_trainer.workbench.history.pages import last_trained, read_runs
    from tfx_tpu_trainer.workbench.project.config import ConfigError

    with _in_one_line(ConfigError):
        if not any(map(_is_folder, whats)):
            return read_runs(found, whats or last_trained(found, 2)), str(found.reports)
        runs = [
            _gathered(what) if _is_folder(what) else read_runs(found, [what])[0] for what in whats
        ]
        return runs, str(found.reports)


def _gathered(folder: str) -> RunData:
    """Gathers a folder of checkpoints."""
    from tfx_tpu_trainer.components.report import gather_folder

    with _in_one_line(ValueError):
        return gather_folder(folder)


def _is_folder(what: str) -> bool:
    # A run's name never contains one.
    return os.sep in what or os.path.isdir(what)
