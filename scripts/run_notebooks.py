"""Runs the notebooks of docs/notebooks and keeps their outputs: `make notebooks`, or some with ARGS=preflight.

The documentation's site shows the outputs without running anything (`page_of`); tests/workbench/test_notebooks.py and
tests/engines/test_jupyter.py run the notebooks again and compare. They keep only what a reader needs: no times of
cells, no standard error of libraries, and no paths of the machine that ran them.
"""

import json
import os
import re
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "docs" / "notebooks"

_LONGEST_OUTPUT = 100_000
# A training's page is longer than all other outputs together.
_FRAME = re.compile(r"<iframe title=\"([^\"]*)\".*?</iframe>", re.DOTALL)
# Rich's progress lines, with their speed.
_PROGRESS = '<pre style="white-space:pre'
# Cell magic -> language of the cell; a file's ending decides for %%writefile.
_LANGUAGES = {"%%bash": "sh", ".py": "python", ".json": "json"}


def execute(path: Path, folder: str) -> NotebookNode:
    """Runs a notebook in its own kernel, as Jupyter does."""
    notebook = nbformat.read(path, as_version=4)
    # Under pytest, ipykernel hides output to file descriptors, as C++ and child processes write it.
    left_out = ("PYTEST_CURRENT_TEST", "TF_CPP_MIN_LOG_LEVEL")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    environment["PYTHONPATH"] = str(ROOT)
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}
    ).execute(env=environment)
    return notebook


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """Returns the cells that run."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(cell: NotebookNode) -> str:
    """Returns a cell's standard output."""
    return "".join(
        output.text
        for output in cell.outputs
        if output.output_type == "stream" and output.name == "stdout"
    )


def keep_outputs(notebook: NotebookNode, folder: str) -> None:
    """Reduces an executed notebook's outputs to what readers need."""
    for cell in code_cells(notebook):
        cell.metadata.pop("execution", None)
        cell.outputs = list(_kept(cell))
        for output in cell.outputs:
            text = str(output)
            if len(text) > _LONGEST_OUTPUT:
                raise ValueError(f"{cell.source.splitlines()[0]}: {len(text)} characters of output")
            if found := [path for path in (folder, str(ROOT), sys.prefix) if path in text]:
                raise ValueError(f"{cell.source.splitlines()[0]} shows {found[0]}")


def _kept(cell: NotebookNode) -> Iterator[NotebookNode]:
    if text := printed(cell):
        yield nbformat.v4.new_output("stream", name="stdout", text=text)
    for output in cell.outputs:
        # The cell's value is TFX's dump of an execution: objects at addresses, with scripts.
        html = output.data.get("text/html", "") if output.output_type == "display_data" else ""
        if html and not html.startswith(_PROGRESS):
            shown = _FRAME.sub(r"(<i>\1</i>, in a frame)", html)
            yield nbformat.v4.new_output("display_data", data={"text/html": shown})


def page_of(path: Path) -> str:
    """Renders a notebook as a Markdown page with its stored outputs.

    Markdown pages have advantages over a plugin's: links are checked like all others, search and the table of contents
    include the text, colours follow the theme, and nothing is loaded from another host.
    """
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
            # The listing's title replaces the message about the written file.
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


def main() -> None:
    named = [NOTEBOOKS / f"{name}.ipynb" for name in sys.argv[1:]]
    for path in named or sorted(NOTEBOOKS.glob("*.ipynb")):
        print(path.relative_to(ROOT))
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(path, folder)
            keep_outputs(notebook, folder)
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
