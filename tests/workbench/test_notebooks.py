"""Runs docs/notebooks, and compares their outputs with those in the repository and on the site.

pipeline.ipynb runs in tests/engines/test_jupyter.py.
"""

import math
import os
import re
import shlex

import nbformat
import pytest

from scripts.run_notebooks import NOTEBOOKS, code_cells, execute, page_of, printed
from tfx_tpu_trainer.workbench.cli.preflight import preflight as command

_NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")
# The frames of tables are as wide as their numbers.
_FRAME = re.compile(r"[\u2500-\u259f]+")
_TAGS = re.compile(r"<svg.*?</svg>|<[^>]*>", re.DOTALL)


def kept(name: str) -> nbformat.NotebookNode:
    """Returns a notebook as stored in the repository."""
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


def words_of(text: str) -> list[str]:
    """The words of a text, or of a page of HTML, with `#` for each number."""
    return _FRAME.sub(" ", _NUMBER.sub("#", _TAGS.sub(" ", text))).split()


def says_the_same(text: str, other: str) -> bool:
    """Returns whether two texts have the same words, and numbers that agree to 0.5 %."""
    numbers, others = (
        [float(number.replace(",", "")) for number in _NUMBER.findall(each)]
        for each in (text, other)
    )
    return words_of(text) == words_of(other) and all(
        math.isclose(number, another, rel_tol=0.005, abs_tol=0.001)
        for number, another in zip(numbers, others)
    )


NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
# Of a cell that shows what this machine measures: it shows the like on every machine, not the same.
MEASURED = "measured"


def _executed(name, tmp_path_factory):
    return execute(NOTEBOOKS / f"{name}.ipynb", str(tmp_path_factory.mktemp(name)))


def _different(notebook, name):
    """Returns cells' output -> the output in the repository, if they differ."""
    return {
        printed(shown): printed(said)
        for shown, said in zip(code_cells(notebook), code_cells(kept(name)), strict=True)
        if MEASURED not in said.metadata.get("tags", [])
        and not says_the_same(printed(said), printed(shown))
    }


def test_a_number_that_is_off_and_another_word_are_differences():
    said = "│ v5e:2x4 │ 5.14 ms │ yes │"
    assert says_the_same(said, "│ v5e:2x4 │  5.15 ms │ yes │")
    assert not says_the_same(said, "│ v5e:2x4 │ 5.24 ms │ yes │")
    assert not says_the_same(said, "│ v5e:2x4 │ 5.14 ms │ no │")
    assert not says_the_same(said, "")


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_kept_as_it_ran_from_its_first_cell_to_its_last(name):
    cells = code_cells(kept(name))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert sum(bool(cell.outputs) for cell in cells) >= 4
    for output in (output for cell in cells for output in cell.outputs):
        assert output.output_type in ("stream", "display_data")
        assert output.get("name", "stdout") == "stdout"
        assert len(str(output)) < 100_000
        assert not re.search(r"(?<![\w.])/(tmp|home|root|work|usr)/", str(output))
        assert "<script" not in str(output)


@pytest.mark.parametrize("name", NAMES)
def test_the_site_s_page_has_a_title_and_every_output(name):
    page = page_of(NOTEBOOKS / f"{name}.ipynb")
    assert page.startswith("# ")
    assert f'href="{name}.ipynb" download' in page
    for cell in code_cells(kept(name)):
        for output in cell.outputs:
            text = output.get("text") or output.data["text/html"]
            assert text.rstrip() in page or cell.source.startswith("%%writefile")


def test_magic_lines_become_titles_and_languages():
    page = page_of(NOTEBOOKS / "preflight.ipynb")
    assert '```python title="clicks.py"\nfrom tfx_tpu_trainer' in page
    assert '```json title="prices.json"\n{"currency"' in page
    assert "```sh\ntfx-tpu-trainer preflight" in page
    assert "%%" not in page


def test_the_preflight_s_commands_have_the_options_that_they_name():
    commands = [
        cell.source.partition("\n")[2]
        for cell in code_cells(kept("preflight"))
        if cell.source.startswith("%%bash")
    ]
    assert len(commands) == 3
    for line in commands:
        words = shlex.split(line.partition("|")[0].replace("\\\n", " "))
        assert words[:2] == ["tfx-tpu-trainer", "preflight"]
        given = command.make_context("preflight", words[2:]).params
        assert given["module"] == "clicks" and given["deadline"] == "2h30m"


@pytest.mark.matrix
@pytest.mark.e2e
def test_emulated_cores_print_what_the_notebook_keeps(tmp_path_factory):
    assert _different(_executed("emulated-cores", tmp_path_factory), "emulated-cores") == {}


# Seven programs for TPUs: 100 s of processor time.
@pytest.mark.sweep
def test_the_preflight_prints_what_the_notebook_keeps(tmp_path_factory):
    cpus = os.sched_getaffinity(0)
    # The verdict on the input depends on how many CPUs read it.
    os.sched_setaffinity(0, sorted(cpus)[:2])
    try:
        notebook = _executed("preflight", tmp_path_factory)
    finally:
        os.sched_setaffinity(0, cpus)
    assert _different(notebook, "preflight") == {}
    for each in (notebook, kept("preflight")):
        rows, batches, decision = (
            printed(cell) for cell in code_cells(each) if MEASURED in cell.metadata.get("tags", [])
        )
        assert "the input is the limit" in rows
        assert "No slice finishes within 2 h 30 min." in rows
        assert "the chips are the limit" in batches
        assert [line.split()[-1] for line in decision.splitlines()] == [
            *("input", "late", "USD"),
            *("chips", "time", "USD"),
        ]
