"""Notebooks: findings by cell and line, edits in the cells, all else byte for byte."""

import json

import pytest
from click.testing import CliRunner

from tests.bad_input import row
from tfx_tpu_trainer.compat.doctor import (
    NotANotebookError,
    NotPythonError,
    examine_notebook,
    repair_notebook,
)
from tfx_tpu_trainer.workbench.cli.main import main

FIRST = """\
%matplotlib inline
!pip install "tensorflow==1.15"
files = !ls
import tensorflow as tf
tf.placeholder?"""
SECOND = """\
def f(x):
    %time y = tf.layers.flatten(x)
    print("%d, %d"
          % (1, 2))
    return tf.contrib.tpu.TPUConfig(), tf.placeholder(tf.float32)"""
BASH = "%%bash\nfor f in *; do echo $f; done"
TIMED = "%%time\nx = tf.contrib.nccl\ny = tf.contrib.nccl"


def _cell(code: str, kind: str = "code") -> dict[str, object]:
    return {"cell_type": kind, "metadata": {}, "source": code.splitlines(keepends=True)}


def _notebook(*cells: dict[str, object], **more: object) -> str:
    content = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5, **more}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


TEXT = _notebook(
    _cell("# Grüße: import tensorflow, tf.contrib.tpu", "markdown"),
    _cell(FIRST),
    _cell(SECOND),
    _cell(BASH),
    _cell(""),
    _cell(TIMED),
)


def test_findings_name_cell_and_line():
    found = examine_notebook(TEXT)
    assert [(each.cell, each.line, each.column, each.name) for each in found] == [
        (1, 4, 1, "import tensorflow as tf"),
        (2, 5, 12, "tf.contrib.tpu.TPUConfig"),
        (5, 2, 5, "tf.contrib.nccl"),
    ]
    assert "tf.placeholder (cell 2, line 5)" in found[0].says
    assert found[2].also_lines == (3,)


def test_fix_edits_the_cells_and_nothing_else():
    repaired = repair_notebook(TEXT)
    # Line by line, as it is written: with its indentation, escapes and the order of its keys.
    new = TEXT.replace(
        '"import tensorflow as tf\\n",',
        '"import tensorflow.compat.v1 as tf\\n",\n    '
        '"from tfx_tpu_trainer.estimator import tpu\\n",',
    ).replace("tf.contrib.tpu.TPUConfig()", "tpu.TPUConfig()")
    # The markdown has no such call.
    assert repaired.text == new
    assert [(each.cell, each.line) for each in repaired.made] == [(1, 4), (2, 5)]
    assert [(each.cell, each.line) for each in repaired.left] == [(5, 2)]
    assert repair_notebook(repaired.text).text == repaired.text


@pytest.mark.parametrize("indent", [None, 2, "\t"])
@pytest.mark.parametrize("as_list", [True, False])
def test_a_notebook_keeps_the_way_in_which_it_is_written(indent, as_list):
    code = "x = 'ü'\nimport tensorflow as tf\ny = tf.placeholder\n"
    source = code.splitlines(keepends=True) if as_list else code
    cell = {"source": source, "cell_type": "code", "outputs": [1e10, "\\/"], "id": "ü"}
    notebook = {"metadata": {"a": 1.50}, "cells": [cell], "nbformat": 4}
    for ascii_only in (True, False):
        text = json.dumps(notebook, indent=indent, ensure_ascii=ascii_only)
        new = text.replace("tensorflow as tf", "tensorflow.compat.v1 as tf")
        assert new != text
        assert repair_notebook(text).text == new


def test_an_import_that_is_added_stands_in_the_cell_of_the_first_import():
    code = "from tensorflow.contrib.summary import scalar\nscalar('a', 1.0, step=2)"
    text = _notebook(_cell("import os"), _cell(code))
    cells = json.loads(repair_notebook(text).text)["cells"]
    assert ["".join(each["source"]) for each in cells] == [
        "import tensorflow.compat.v1 as tf\nimport os",
        "tf.compat.v2.summary.scalar('a', 1.0, step=2)",
    ]


@pytest.mark.parametrize("text", ['{"cells": [', "[]"])
def test_what_is_no_notebook_is_an_error(text):
    with pytest.raises(NotANotebookError):
        examine_notebook(text)


@row("doctor", "a cell of Python 2", "cell 2, line 2: ", "2to3")
def test_a_cell_of_python_2_is_told_with_cell_and_line(refused):
    text = _notebook(_cell("import tensorflow as tf"), _cell("x = 1\nprint 'a'"))
    with refused(NotPythonError):
        examine_notebook(text)


def test_notebooks_of_other_languages_and_without_code_have_no_findings():
    other = {"language_info": {"name": "julia"}}
    assert examine_notebook(_notebook(_cell("using tensorflow"), metadata=other)) == []
    for text in (_notebook(), _notebook(_cell("import tensorflow", "markdown"))):
        assert examine_notebook(text) == []
        assert repair_notebook(text).text == text


def test_the_command_reads_notebooks_of_a_folder(tmp_path):
    (tmp_path / "a.ipynb").write_text(TEXT, encoding="utf-8")
    (tmp_path / ".ipynb_checkpoints").mkdir()
    (tmp_path / ".ipynb_checkpoints" / "a.ipynb").write_text(TEXT, encoding="utf-8")
    (tmp_path / "b.py").write_text("import tensorflow\nprint 'a'\n", encoding="utf-8")
    result = CliRunner().invoke(main, ["doctor", str(tmp_path), "--diff"])
    assert result.exit_code == 2
    assert "cell 2, 5:12  edit, --fix makes it  tf.contrib.tpu.TPUConfig" in result.stdout
    assert "+from tfx_tpu_trainer.estimator import tpu\n" in result.stdout
    assert "1 file; 4 edits needed, 2 of them made by --fix" in result.stdout
    assert result.stderr.startswith(f"Error: {tmp_path / 'b.py'}: line 2: ")
    told = json.loads(CliRunner().invoke(main, ["doctor", str(tmp_path), "--json"]).stdout)
    assert [each["cell"] for each in told["files"][0]["findings"]] == [1, 2, 5]
    assert CliRunner().invoke(main, ["doctor", str(tmp_path), "--fix"]).exit_code == 2
    assert (tmp_path / "a.ipynb").read_text(encoding="utf-8") == repair_notebook(TEXT).text
