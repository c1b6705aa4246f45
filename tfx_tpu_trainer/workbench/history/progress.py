"""Displays the progress of another process's run, read from ML Metadata."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import ml_metadata
from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tfx_tpu_trainer.workbench.project import metadata
from tfx_tpu_trainer.workbench.project.metadata import NodeStatus, State

MARKS = {
    State.WAITING: Text("·", style="dim"),
    State.COMPLETE: Text("✓", style="green"),
    State.CACHED: Text("↺", style="cyan"),
    State.FAILED: Text("✗", style="bold red"),
    State.SKIPPED: Text("-", style="yellow"),
    State.KILLED: Text("✗", style="bold red"),
}
STYLES = {
    State.WAITING: "dim",
    State.RUNNING: "bold",
    State.CACHED: "cyan",
    State.FAILED: "red",
    State.KILLED: "red",
}
PROGRESS_SECONDS = 30.0


class RunMonitor:
    """Reads the progress of a run in another process without blocking it.

    Make it before the other process starts: it follows the first run that it has not seen before.
    """

    def __init__(self, metadata_file: str | Path) -> None:
        self._file = Path(metadata_file)
        self._store: ml_metadata.MetadataStore | None = None
        self._run: str | None = None
        self._known = (
            metadata.run_names(metadata.open_store(self._file)) if self._file.exists() else []
        )

    @property
    def run(self) -> str | None:
        """The name of the followed run; None before its first component starts."""
        return self._run

    def statuses(self, nodes: Sequence[str]) -> list[NodeStatus] | None:
        """Returns each component's status."""
        if not nodes:
            return []
        try:
            if self._store is None:
                self._store = metadata.open_store(self._file)
            self._run = self._run or metadata.newest_run(self._store, known=self._known)
            found = metadata.node_statuses(self._store, self._run) if self._run else {}
        except (metadata.UnreadableError, ml_metadata.errors.StatusError):
            # The writer holds the file at the moment; the next poll will see more.
            return None
        return [found.get(node, NodeStatus(node)) for node in nodes]


class LiveDisplay:
    """A table that redraws itself in place: for a terminal."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=8, transient=True)
        self._spinners: dict[str, Spinner] = {}

    def update(
        self, statuses: Iterable[NodeStatus], note: str, progress: str | None = None
    ) -> None:
        """Shows the components, another activity in `note`, and the running component's own progress."""
        table = Table.grid(padding=(0, 2))
        for status in statuses:
            mark = (
                self._spinner(status.node) if status.state is State.RUNNING else MARKS[status.state]
            )
            seconds = f"{status.seconds:6.1f} s" if status.state is not State.WAITING else ""
            table.add_row(
                mark, status.node, status.state.value, seconds, style=STYLES.get(status.state, "")
            )
        if progress is not None:
            # Below the table, where a long line fits.
            self._live.update(Group(table, Text(progress, overflow="fold")))
            return
        self._live.update(Group(table, Text(note, style="dim")))

    def _spinner(self, node: str) -> Spinner:
        return self._spinners.setdefault(node, Spinner("dots"))

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()


class PlainDisplay:
    """A line for each change: for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start = time.monotonic()
        self._shown: dict[str, State] = {}
        self._note = ""
        self._progress_shown = self._start

    def update(
        self, statuses: Iterable[NodeStatus], note: str, progress: str | None = None
    ) -> None:
        """As in `LiveDisplay`; the running component's progress is one line every 30 seconds."""
        if note != self._note:
            self._note = note
            self._print(note)
        for status in statuses:
            if status.state is State.WAITING or self._shown.get(status.node) is status.state:
                continue
            self._shown[status.node] = status.state
            took = f" ({status.seconds:.1f} s)" if status.state.ended else ""
            self._print(f"{status.node}: {status.state.value}{took}")
        if progress is not None and time.monotonic() - self._progress_shown >= PROGRESS_SECONDS:
            self._progress_shown = time.monotonic()
            self._print(progress)

    def _print(self, text: str) -> None:
        self._console.print(f"[{time.monotonic() - self._start:6.1f} s] {text}", markup=False)

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(self, *error: object) -> None:
        return None


Display = LiveDisplay | PlainDisplay


def make_display(console: Console, *, plain: bool) -> Display:
    """Returns a display for the console: live on a terminal unless lines are requested."""
    return PlainDisplay(console) if plain or not console.is_terminal else LiveDisplay(console)
