"""`tfx-tpu-trainer --help`: the list of commands."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tfx_tpu_trainer.cli.main import main


@pytest.mark.parametrize("columns", [80, 100])
def test_the_list_of_commands_cuts_no_sentence(columns):
    shown = CliRunner().invoke(main, ["--help"], terminal_width=columns).output
    commands = shown.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in commands] == sorted(main.commands)
    for line in commands:
        assert line.endswith(".") and not line.endswith("..."), line
        assert len(line) <= 80, line
