"""A notebook as a page of the documentation's site: its outputs unchanged in the file, nothing is run.

Pages of Markdown rather than those of a plugin: links are checked like all others, search and the table of contents
know the text, colours follow the theme, and nothing is loaded from another host.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# Magic of a cell -> the language of what follows; a file's follows from its name.
_LANGUAGES = {"%%bash": "sh", ".py": "python", ".json": "json"}


def page_of(path: Path) -> str:
    """Returns the Markdown of a notebook."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    title, *rest = (block for cell in cells for block in _blocks(cell))
    download = f'<p><a href="{path.name}" download>Download this notebook</a></p>'
    return "\n\n".join([title, download, *rest]) + "\n"


def _blocks(cell: Mapping[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield _listing(source)
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            # What a cell says of a file that it has written is in the listing's title.
            if not source.startswith("%%writefile"):
                yield _fenced("".join(output["text"]), "{ .text .notebook-output }")
        else:
            html = "".join(output["data"]["text/html"])
            yield f'<div class="notebook-output">\n{html}\n</div>'


def _listing(source: str) -> str:
    first, _, rest = source.partition("\n")
    if first.startswith("%%writefile "):
        name = first.split()[1]
        return _fenced(rest, f'{_LANGUAGES[Path(name).suffix]} title="{name}"')
    if first in _LANGUAGES:
        return _fenced(rest, _LANGUAGES[first])
    return _fenced(source, "python")


def _fenced(text: str, language: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"
