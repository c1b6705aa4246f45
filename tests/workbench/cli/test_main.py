"""`tfx-tpu-trainer --help`: the list of commands."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner

from tests.bad_input import case
from tfx_tpu_trainer.workbench.cli.main import main


@pytest.mark.parametrize("columns", [80, 100])
def test_the_list_of_commands_cuts_no_sentence(columns):
    shown = CliRunner().invoke(main, ["--help"], terminal_width=columns).output
    commands = shown.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in commands] == sorted(main.commands)
    for line in commands:
        assert line.endswith(".") and not line.endswith("..."), line
        assert len(line) <= 80, line


# As Python has the byte 0xff of a name on the command line.
_NAME = os.fsdecode(b"a\xff/b")


@pytest.mark.parametrize(
    "words",
    [
        case(
            "disks",
            f"`{' '.join(words)}` with a path that is not UTF-8",
            r"a\udcff/b' is not UTF-8, and TensorFlow opens no other paths; rename the file or folder, or give another",
            values=(words,),
        )
        for words in (
            ["report"],
            ["report", "--output"],
            ["inspect"],
            ["preflight", "--tpu=v5e:2x2", "--batch_size=1", "--saved_model"],
            ["new"],
            ["new", "folder", "--data"],
            ["run", "--pipeline=taxi", "--root"],
        )
    ],
)
def test_a_path_that_tensorflow_can_not_take_is_named(words, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    given = [*words, _NAME]
    if words[0] == "new":
        given += ["--label=y", *(["--data=data.csv"] if words == ["new"] else [])]
    refused.output(CliRunner().invoke(main, given))
    assert not list(tmp_path.iterdir())
