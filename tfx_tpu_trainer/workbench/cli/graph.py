"""`tfx-tpu-trainer graph`: a pipeline, or a run of it, as a diagram."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tfx_tpu_trainer.workbench.cli.project_options import (
    check_one_project,
    find_project,
    project_options,
    root_of,
    runner_extra,
)
from tfx_tpu_trainer.workbench.cli.quiet_tensorflow import quiet_tensorflow

if TYPE_CHECKING:
    from tfx_tpu_trainer.workbench.history.graph import Graph

_SUFFIXES = {"mermaid": "mmd", "dot": "dot"}
_STDOUT = "-"


class _Format(click.Choice):
    """The forms of a diagram."""

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        if value == "svg":
            self.fail(
                "svg is not drawn any more; give dot, and draw it with Graphviz: "
                "tfx-tpu-trainer graph --format dot --output - | dot -Tsvg",
                param,
                ctx,
            )
        return str(super().convert(value, param, ctx))


@click.command(short_help="Draws a pipeline, or a run of it.")
@click.argument("run", metavar="[RUN]", required=False)
@project_options
@click.option("--root", metavar="DIR", help="The root of the runs; replaces --project.")
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
    drawn = _of_run(run, root, project) if run is not None or last else _of_project(project)
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


def _of_run(run: str | None, root: str | None, project: dict[str, Any]) -> Graph:
    found = root_of(root, **project)
    from tfx_tpu_trainer.workbench.history.graph import graph_of_run
    from tfx_tpu_trainer.workbench.project.config import ConfigError

    try:
        return graph_of_run(found, run)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None


def _of_project(project: dict[str, Any]) -> Graph:
    check_one_project(project["folder"], project["name"])
    with runner_extra():
        from tfx_tpu_trainer.workbench.history.graph import graph_of_pipeline
        from tfx_tpu_trainer.workbench.project.config import ConfigError
    try:
        found = find_project(project["folder"], project["name"])
        config = found.config(config_file=project["config_file"])
    except ConfigError as error:
        raise click.ClickException(str(error).splitlines()[0]) from None
    with quiet_tensorflow():
        try:
            # Nothing is read: the folder of data need not be there.
            config = config.model_copy(update={"data": config.data or config.root})
            return graph_of_pipeline(found.create_pipeline(config))
        # Whatever a project's own code raises, or ends with.
        except (Exception, SystemExit) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise click.ClickException(
                f"the pipeline of {str(found.folder)!r} can't be made: {reason}"
            ) from None
