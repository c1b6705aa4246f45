"""Prints names and messages from elsewhere as plain text; see `printable` in `messages.py`."""

import errno
import io
import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from tfx_tpu_trainer._support.imports import MissingExtraError
from tfx_tpu_trainer._support.messages import printable

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def text(value: object, style: str = "") -> Text:
    """Returns text for a console, escaped before a table measures it."""
    return Text(printable(str(value)), style=style)


class PlainConsole(Console):
    """A console for plain text: no control characters, markup or emoji names."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Renders as rich does, and escapes."""
        for segment in super().render(renderable, options):
            # Rich puts its own terminal commands into separate segments.
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def standard_output(*, width: int = 120) -> PlainConsole:
    """Returns a console for the standard output."""
    console = PlainConsole()
    if console.is_terminal:
        return console
    return PlainConsole(file=_WithoutPadding(sys.stdout), width=width)


class _WithoutPadding:
    """A stream that strips the spaces with which tables pad lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, words: str) -> int:
        """Writes complete lines; keeps an incomplete last line for the next call."""
        *lines, rest = words.split("\n")
        self._stream.write("".join(f"{line.rstrip(' ')}\n" for line in lines) + rest)
        return len(words)


class PrintableGroup(click.Group):
    """A click group that prints errors as one line without control characters."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs a command."""
        if sys.stdout is None:
            # The caller closed it, as with `>&-`, and wants no output.
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
            # Escapes characters that the terminal's encoding lacks, as on stderr.
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except OSError as error:
            if error.errno not in _FULL or error.filename is not None:
                raise
            # Python flushes it again at exit, and would print an error.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            click.echo(
                f"Error: the output can't be written ({error.strerror}); free some disk space, or "
                "redirect it elsewhere",
                err=True,
            )
            raise click.exceptions.Exit(2) from None
        except MissingExtraError as error:
            click.echo(f"Error: {error.msg}", err=True)
            raise click.exceptions.Exit(2) from None
        except click.UsageError:
            # Click quotes its arguments.
            raise
        except click.ClickException as error:
            click.echo(f"Error: {printable(error.format_message())}", err=True)
            raise click.exceptions.Exit(error.exit_code) from error
