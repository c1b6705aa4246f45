"""The listings of docs/preflight-embeddings.md are what the command prints."""

from __future__ import annotations

import pathlib
import re

from click.testing import CliRunner

from tfx_tpu_trainer.workbench.cli.main import main

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "preflight-embeddings.md"


def test_the_pages_spec_is_planned_as_the_page_shows(tmp_path, monkeypatch):
    page = PAGE.read_text(encoding="utf-8")
    (spec,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    others = page.replace(f"```json\n{spec}```", "")
    command, shown = re.findall(r"```\n(.*?)```", others, re.DOTALL)[:2]
    (tmp_path / "spec.json").write_text(spec, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(main, command.split()[1:])
    assert ended.exit_code == 0, ended.output
    assert ended.output.startswith(shown)
