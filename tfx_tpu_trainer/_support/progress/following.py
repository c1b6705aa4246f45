"""Whose progress is followed: that of the outermost call of a thread."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

from tfx_tpu_trainer._support.progress.log_view import LogView
from tfx_tpu_trainer._support.progress.progress import Expected, Progress, View
from tfx_tpu_trainer._support.progress.status_file import STATUS_VARIABLE, StatusFile

MODES = ("auto", "bar", "log", "off")
"""How progress is shown: depending on standard error, as bars, as log lines, or not at all."""

_innermost = threading.local()


def current() -> Progress | None:
    """Returns the progress that this thread's call is part of; `None` where nobody follows it."""
    return getattr(_innermost, "progress", None)


@contextlib.contextmanager
def followed(mode: str | None, *, may_draw: bool = True) -> Iterator[Progress]:
    """Follows the block; as a part, where it is one of a block that is followed already."""
    outer = current()
    if outer is not None:
        yield outer
        return
    progress = Progress(_views(mode or "off", may_draw=may_draw), expected=_expected)
    _innermost.progress = progress
    try:
        yield progress
    finally:
        _innermost.progress = None
        progress.close()


@contextlib.contextmanager
def expecting(
    *,
    last_step: int | None = None,
    next_evaluation: Callable[[], str | None] = lambda: None,
) -> Iterator[None]:
    """Says what the calls of the block can't know of the training that they are part of; see `Expected`."""
    outer = _expected()
    _innermost.expected = Expected(last_step, next_evaluation)
    try:
        yield
    finally:
        _innermost.expected = outer


def unfollowed(mode: str | None, *, may_draw: bool = True) -> Progress:
    """Returns the progress of something that other things are done beside, such as a generator's rows.

    Nothing of it stays on a terminal between two lines. Within what is followed already it is shown to nobody.
    """
    if current() is not None or mode in (None, "off"):
        return Progress()
    if mode != "log" and may_draw:
        from tfx_tpu_trainer._support.progress.bar_view import terminal

        if (console := terminal(is_forced=mode == "bar")) is not None:
            return Progress([LogView(console.print)])
    return Progress([LogView()])


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Counts the seconds of the block, where somebody follows it, and has a log tell that it begins."""
    progress = current()
    with contextlib.nullcontext() if progress is None else progress.phase(name, is_told=True):
        yield


def _expected() -> Expected:
    return getattr(_innermost, "expected", None) or Expected()


def _views(mode: str, *, may_draw: bool) -> list[View]:
    if mode == "off":
        return []
    views: list[View] = []
    if path := os.environ.get(STATUS_VARIABLE):
        views.append(StatusFile(path))
    if mode != "log" and may_draw:
        # Rich is imported where there is something to draw.
        from tfx_tpu_trainer._support.progress.bar_view import bar_view

        bar = bar_view(is_forced=mode == "bar")
        if bar is not None:
            return [*views, bar]
    return [*views, LogView()]
