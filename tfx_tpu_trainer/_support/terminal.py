"""The terminal, on which the names and messages of others are text: see `printable` of `messages.py`."""

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
    """Returns text for a console, escaped before a table makes room for it."""
    return Text(printable(str(value)), style=style)


class PlainConsole(Console):
    """A console on which text is text: no control characters, no markup, no smileys by name."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Renders as rich does, and escapes."""
        for segment in super().render(renderable, options):
            # Rich's own commands to the terminal stand in segments of their own.
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def standard_output(*, width: int = 120) -> PlainConsole:
    """Returns the standard output as a console."""
    console = PlainConsole()
    if console.is_terminal:
        return console
    return PlainConsole(file=_WithoutPadding(sys.stdout), width=width)


class _WithoutPadding:
    """A stream without the spaces at the ends of lines, with which tables fill their columns."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, words: str) -> int:
        """Writes lines; what follows the last of them may be the beginning of another one, and stays."""
        *lines, rest = words.split("\n")
        self._stream.write("".join(f"{line.rstrip(' ')}\n" for line in lines) + rest)
        return len(words)


class PrintableGroup(click.Group):
    """A group of commands whose errors are one line, without control characters."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs a command."""
        if sys.stdout is None:
            # Closed by the caller, as by `>&-`: nobody wants to see the output.
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
            # Written out what the terminal's encoding has not, a tick or a name, as on stderr.
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except OSError as error:
            if error.errno not in _FULL or error.filename is not None:
                raise
            # Python tries once more when it ends, and has much to say.
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
            # Click quotes what it was given.
            raise
        except click.ClickException as error:
            click.echo(f"Error: {printable(error.format_message())}", err=True)
            raise click.exceptions.Exit(error.exit_code) from error
