"""docs/strategies.md: its program runs, and each test that it names is there."""

import pathlib
import re

import pytest
import tensorflow as tf

HERE = pathlib.Path(__file__).parent
PAGE = (HERE.parents[3] / "docs" / "strategies.md").read_text()
NAMED = re.findall(r"`(test_\w+)\.py::(test_\w+)(?:\[(\w+)\])?`", PAGE)


def test_every_test_that_the_page_names_is_there():
    assert len(NAMED) > 20
    for module, function, case in NAMED:
        source = (HERE / f"{module}.py").read_text()
        assert f"def {function}(" in source, (module, function)
        assert not case or f'"{case}"' in source + (HERE / "strategy_runs.py").read_text(), case


@pytest.mark.parametrize("column", [2, 3])
def test_every_strategy_of_the_table_names_its_test(column):
    table = PAGE.partition("## What works")[2].partition("\n##")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 11
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert re.search(r"`test_\w+\.py::", cells[-1]), row
        assert cells[column - 1], row


def test_the_program_of_the_page_learns(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program = re.search(r"```python\n(.*?)```", PAGE, re.S)[1]
    names: dict = {}
    exec(compile(program, "strategies.md", "exec"), names)
    assert names["metrics"]["global_step"] == 20
    # Ten steps of two batches of two rows; y is 2 x + 1.
    assert names["metrics"]["label/mean"] == pytest.approx(1.9)
    assert names["metrics"]["average_loss"] < 0.2
    assert isinstance(names["strategy"], tf.distribute.MirroredStrategy)
