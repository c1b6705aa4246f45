"""The listings of docs/compat.md and docs/doctor.md."""

import os
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.programs.fetching import REPOSITORY
from tfx_tpu_trainer.compat.doctor import Verdict, examine
from tfx_tpu_trainer.workbench.cli.main import main


def test_the_listing_of_compat_runs():
    page = (REPOSITORY / "docs" / "compat.md").read_text(encoding="utf-8")
    (listing,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(listing, {})


PAGE = REPOSITORY / "docs" / "doctor.md"
LISTINGS = re.findall(r"```(\w*)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
PYTHON = [text for kind, text in LISTINGS if kind == "python"]


def test_the_example_gives_what_the_page_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(PYTHON[0], encoding="utf-8")
    (shown,) = (text for kind, text in LISTINGS if not kind)
    assert CliRunner().invoke(main, ["doctor", "program.py"]).stdout == shown


@pytest.mark.e2e
def test_the_host_call_writes_summaries(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names: dict[str, Any] = {}
    exec(compile(PYTHON[1], str(PAGE), "exec"), names)
    assert [name for name in os.listdir(names["FOLDER"]) if name.startswith("events")]
    assert names["estimator"].get_variable_value("global_step") == 3
    assert not [each for each in examine(PYTHON[1]) if each.verdict is Verdict.EDIT]


def test_the_library_does_what_the_page_says():
    names: dict[str, Any] = {}
    exec(compile(PYTHON[2], str(PAGE), "exec"), names)
    assert [each.line for each in names["findings"]] == [1]
    assert names["repaired"].text.startswith("import tensorflow.compat.v1 as tf\n")
    assert names["repaired"].left == ()
