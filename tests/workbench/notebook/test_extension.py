"""What a run writes to file descriptors, as C++ and child processes do."""

from __future__ import annotations

import subprocess

import pytest

from tfx_tpu_trainer.workbench.notebook.extension import loud_runs, quiet_runs
from tfx_tpu_trainer.workbench.notebook.tfx_private import InteractiveContext


@pytest.fixture
def run(monkeypatch):
    """`InteractiveContext.run`, quiet, of a TFX whose run is a shell command."""

    def shell(self, command):
        subprocess.run(command, shell=True, check=True)
        print("from Python")

    monkeypatch.setattr(InteractiveContext, "run", shell)
    quiet_runs()
    quiet_runs()
    yield lambda command: InteractiveContext.run(None, command)
    loud_runs()
    assert InteractiveContext.run is shell


def test_only_what_python_prints_is_shown(run, capfd):
    run("echo building; echo wheel >&2")
    assert capfd.readouterr() == ("from Python\n", "")


def test_after_a_failure_the_last_lines_are_shown(run, capfd):
    with pytest.raises(subprocess.CalledProcessError):
        run("seq 100; exit 3")
    shown = capfd.readouterr()
    assert shown.out == "" and shown.err.split() == [str(line) for line in range(61, 101)]


def test_the_next_command_is_shown_again(run, capfd):
    run("echo building")
    subprocess.run("echo after", shell=True, check=True)
    assert capfd.readouterr().out == "from Python\nafter\n"
