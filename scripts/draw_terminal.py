"""Draws what a command prints as a picture: `COMMAND | python -m scripts.draw_terminal FILE.svg [--title TITLE]`.

The picture loads no font: it names those that machines have. docs/images/demo.svg is one, of `tfx-tpu-trainer show`.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

# The font of rich's own pictures is on another host.
_FONT_FACE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
_FONTS = '"DejaVu Sans Mono", Menlo, Consolas, "Liberation Mono", monospace'


def picture(text: str, *, title: str, width: int = 100) -> str:
    """Returns a terminal with a text in it, as SVG."""
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(text.rstrip()))
    drawn = console.export_svg(title=title, theme=MONOKAI, unique_id="terminal")
    drawn = _FONT_FACE.sub("", drawn).replace("Fira Code, monospace", _FONTS)
    return "\n".join(line.rstrip() for line in drawn.splitlines()) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--title", default="")
    given = parser.parse_args()
    given.file.write_text(picture(sys.stdin.read(), title=given.title), encoding="utf-8")


if __name__ == "__main__":
    main()
