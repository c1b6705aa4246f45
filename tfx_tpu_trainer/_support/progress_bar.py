"""Draws progress as a bar on a terminal or in a notebook."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tfx_tpu_trainer._support.progress import Batches, Steps, duration
from tfx_tpu_trainer._support.terminal import PlainConsole

_REFRESHES_PER_SECOND = 4
_BAR_WIDTH = 24

# Two bars would overwrite each other.
_drawing = threading.Lock()


def bar_view(*, is_forced: bool) -> BarView | None:
    """Returns a bar on standard error, or in a notebook's cell."""
    console = terminal(is_forced=is_forced)
    if console is None or not _drawing.acquire(blocking=False):
        return None
    return BarView(console)


def terminal(*, is_forced: bool) -> Console | None:
    """Returns a console for standard error, or for a notebook's cell."""
    stream = sys.stderr
    if stream is None:
        return None
    console = PlainConsole(
        file=stream, soft_wrap=True, force_terminal=True if is_forced else stream.isatty()
    )
    if console.is_jupyter:
        if importlib.util.find_spec("ipywidgets") is None:
            return None
    elif not console.is_terminal or console.is_dumb_terminal:
        return None
    return console


class BarView:
    """A `View` that draws progress in a few lines; all other output scrolls above them."""

    every_secs = 1 / _REFRESHES_PER_SECOND

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._state: tuple[str, float, Steps | Batches | None] = ("", clock(), None)
        self._stack = contextlib.ExitStack()
        self._live: Live | None = None

    def began(self, phase: str, *, is_told: bool) -> None:
        """Shows the phase."""
        del is_told
        self._state = (phase, self._clock(), None)
        if self._live is None:
            self._start()

    def shown(self, phase: str, work: Steps | Batches) -> None:
        """Stores the progress, which another thread draws."""
        self._state = (phase, self._state[1], work)

    def said(self, line: str) -> None:
        """Writes a message above the bar."""
        with _terminal_may_be_gone():
            self._console.print(line)

    def close(self) -> None:
        """Removes the bar."""
        with _terminal_may_be_gone():
            self._stack.close()
        if _drawing.locked():
            _drawing.release()

    def __rich__(self) -> RenderableType:
        """Renders the bar's current state."""
        phase, began, work = self._state
        share = None if work is None else work.share
        row = Table.grid(padding=(0, 1), expand=False)
        row.add_column(no_wrap=True)
        row.add_column(width=_BAR_WIDTH)
        row.add_column(overflow="ellipsis", no_wrap=True)
        bar = ProgressBar(total=1.0, completed=share or 0.0, pulse=share is None, width=_BAR_WIDTH)
        now = self._clock()
        count = "" if work is None else f"{work.count()}, "
        row.add_row(Text(phase, style="bold"), bar, Text(f"{count}{duration(now - began)} so far"))
        details = [] if work is None else work.details()
        if not details:
            return row
        return Group(row, Text("  " + ", ".join(details), overflow="fold", no_wrap=False))

    def _start(self) -> None:
        in_terminal = not self._console.is_jupyter
        live = Live(
            console=self._console,
            get_renderable=lambda: self,
            refresh_per_second=_REFRESHES_PER_SECOND,
            transient=True,
            # Output to a file or pipe is not redirected.
            redirect_stdout=in_terminal and _is_terminal(sys.stdout),
            redirect_stderr=in_terminal,
        )
        self._live = live
        before = sys.stdout, sys.stderr
        with _terminal_may_be_gone():
            live.start(refresh=True)
            self._stack.callback(live.stop)
            # A killed process would leave the terminal without a cursor.
            self._console.show_cursor(True)
            self._stack.enter_context(_handlers_moved(dict(zip(before, (sys.stdout, sys.stderr)))))


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


@contextlib.contextmanager
def _terminal_may_be_gone() -> Iterator[None]:
    """Lets a run continue after its terminal was closed."""
    with contextlib.suppress(OSError, ValueError):
        yield


@contextlib.contextmanager
def _handlers_moved(streams: dict[Any, Any]) -> Iterator[None]:
    """Makes logging handlers, which keep their original stream, write above the bar."""
    moved = []
    for name in ("", "tensorflow", "absl"):
        for handler in logging.getLogger(name).handlers:
            # Abseil's handler delegates to another one.
            writer = getattr(handler, "python_handler", handler)
            stream = getattr(writer, "stream", None)
            instead = next((new for old, new in streams.items() if old is stream), None)
            if isinstance(writer, logging.StreamHandler) and instead not in (None, stream):
                moved.append((writer, stream, instead))
                writer.setStream(instead)
    try:
        yield
    finally:
        for writer, stream, instead in moved:
            if writer.stream is instead:
                writer.setStream(stream)
