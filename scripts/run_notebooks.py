"""Runs the notebooks of docs/notebooks and keeps what they show: `make notebooks`, of some with ARGS=preflight.

The documentation's site renders the outputs without running anything; tests/workbench/notebook and
tests/engines/test_jupyter.py run the notebooks again and compare. Kept is what a reader learns from: no
times of cells, nothing that libraries say on standard error, and no paths of the machine that ran them.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "docs" / "notebooks"

_LONGEST_OUTPUT = 100_000
# The page of a training is longer than all other outputs together.
_FRAME = re.compile(r"<iframe title=\"([^\"]*)\".*?</iframe>", re.DOTALL)
# How far a training is, with its speed: lines of rich.
_PROGRESS = '<pre style="white-space:pre'


def execute(path: Path, folder: str) -> NotebookNode:
    """Runs a notebook in a kernel of its own, as Jupyter does."""
    notebook = nbformat.read(path, as_version=4)
    # Under pytest ipykernel does not show what goes to file descriptors, as C++ and child processes write to them.
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
    """Returns what a cell prints on standard output."""
    return "".join(
        output.text
        for output in cell.outputs
        if output.output_type == "stream" and output.name == "stdout"
    )


def keep_outputs(notebook: NotebookNode, folder: str) -> None:
    """Leaves what a reader learns from in an executed notebook."""
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
        # The value of a cell is what TFX says of an execution: objects at addresses, with scripts.
        html = output.data.get("text/html", "") if output.output_type == "display_data" else ""
        if html and not html.startswith(_PROGRESS):
            shown = _FRAME.sub(r"(<i>\1</i>, in a frame)", html)
            yield nbformat.v4.new_output("display_data", data={"text/html": shown})


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
