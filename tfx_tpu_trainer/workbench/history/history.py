"""The runs of a root, with each component's state, time and error."""

from __future__ import annotations

import datetime
import difflib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import ml_metadata
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from tfx_tpu_trainer._support.terminal import standard_output
from tfx_tpu_trainer.workbench.history.progress import STYLES
from tfx_tpu_trainer.workbench.project import metadata, roots
from tfx_tpu_trainer.workbench.project.config import ConfigError
from tfx_tpu_trainer.workbench.project.metadata import NodeStatus, State
from tfx_tpu_trainer.workbench.project.roots import Root

# What stands below a component's line stands below its name.
_INDENT = 7
_SHOWN = 5


def print_history(root: Root, *, last: int) -> None:
    """Shows the newest runs of a root, the newest last."""
    console = standard_output()
    store = root.store()
    try:
        runs = metadata.run_names(store)
    except metadata.UnreadableError as error:
        raise ConfigError(f"{error}; give the root of a pipeline's runs with --root") from None
    for number, run in enumerate(runs[-last:]):
        if number:
            console.print()
        _print_run(console, store, run, root.folder)
    if runs:
        below = f"Paths without a leading / are below {root.folder}"
        console.print(f"\n{below}", style="dim", soft_wrap=True)


def _print_run(console: Console, store: ml_metadata.MetadataStore, run: str, root: Path) -> None:
    statuses = seen_from_outside(metadata.node_statuses(store, run).values(), root)
    console.print(Text(f"run {run}: {in_words(statuses)}", style="bold"), soft_wrap=True)
    width = max((len(status.node) for status in statuses), default=0)
    for status in statuses:
        seconds = f"{status.seconds:9.1f} s" if status.state is not State.KILLED else ""
        line = f"{status.execution_id:>5}  {status.node:<{width}}  {status.state.value:<8}{seconds}"
        console.print(Text(line.rstrip(), style=STYLES.get(status.state, "")), soft_wrap=True)
        if status.error:
            # Sentences are folded; paths are there to be copied.
            console.print(Padding(Text(status.error, style="red"), (0, 0, 0, _INDENT)))
        for text in _outputs(store, status, root):
            console.print(" " * _INDENT + text, style="dim", soft_wrap=True)


def find_run(runs: Sequence[str], name: str | None, root: Root) -> str:
    """The run that a name means."""
    if not runs:
        raise ConfigError(f"{str(root.folder)!r} has no runs; run the pipeline first")
    if name is None or name in runs:
        return name or runs[-1]
    meant = [run for run in runs if run.startswith(name)]
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise ConfigError(
            f"{name!r} is the beginning of {len(meant)} runs' names; give more of one, such as "
            f"{meant[-1]!r}"
        )
    nearest = difflib.get_close_matches(name, runs, n=1)
    hint = f"did you mean {nearest[0]!r}? The" if nearest else "the"
    newest = ", ".join(runs[-_SHOWN:])
    raise ConfigError(f"unknown run {name!r} in {str(root.folder)!r}; {hint} newest are {newest}")


def seen_from_outside(statuses: Iterable[NodeStatus], root: Path) -> list[NodeStatus]:
    """The components of a run as they are, whatever a killed process has left in ML Metadata."""
    # A killed process can't record its end, so ML Metadata says "running" for ever. The lock tells the truth: if
    # nobody holds the root, or its holder began after these components, what is "running" here was killed.
    statuses = list(statuses)
    try:
        since = roots.held_since(root)
    except OSError:
        return statuses
    # The run that goes on just now need not have begun its first component: then the newest run is another one.
    goes_on = since is not None and any(status.started >= since for status in statuses)
    return statuses if goes_on else [metadata.killed_if_running(status) for status in statuses]


def in_words(statuses: Sequence[NodeStatus]) -> str:
    """A run's state, when it began and how long its components took."""
    if not statuses:
        return "no component has started"
    states = {status.state for status in statuses}
    state = next(
        (state for state in (State.RUNNING, State.KILLED, State.FAILED) if state in states),
        State.COMPLETE,
    )
    began = datetime.datetime.fromtimestamp(min(status.started for status in statuses))
    seconds = sum(status.seconds for status in statuses)
    return f"{state.value}, started {began:%Y-%m-%d %H:%M}, {seconds:.1f} s"


def _outputs(store: ml_metadata.MetadataStore, status: NodeStatus, root: Path) -> Iterator[str]:
    for key, artifact in metadata.outputs(store, status.execution_id).items():
        yield f"{key}: {_below(artifact.uri, root)}"


def _below(uri: str, root: Path) -> str:
    inside = f"{root}{os.sep}"
    return uri.removeprefix(inside) or uri
