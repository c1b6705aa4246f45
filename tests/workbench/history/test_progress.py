"""How far a running component says it is, in the runner's displays."""

from __future__ import annotations

import io

import pytest

from tfx_tpu_trainer._support.progress import Steps
from tfx_tpu_trainer._support.progress_views import StatusFile
from tfx_tpu_trainer._support.terminal import PlainConsole
from tfx_tpu_trainer.workbench.history import progress
from tfx_tpu_trainer.workbench.history.progress import LiveDisplay, PlainDisplay
from tfx_tpu_trainer.workbench.history.report import RunReport
from tfx_tpu_trainer.workbench.history.summary import results_table
from tfx_tpu_trainer.workbench.project.metadata import NodeStatus, State
from tfx_tpu_trainer.workbench.run import local_runner

TRAINER = NodeStatus("TpuTrainer", State.RUNNING, seconds=3.0)
SAID = "TpuTrainer: train: step 500 of 5,000 (10 %)"


def test_the_line_is_the_running_components_own_and_is_gone_with_it(tmp_path):
    view = StatusFile(str(tmp_path / local_runner.PROGRESS))
    view.shown("train", Steps(reached=500, last=5000))
    done = NodeStatus("Transform", State.COMPLETE)
    assert local_runner._progress([done, TRAINER], tmp_path) == SAID
    assert local_runner._progress([done], tmp_path) is None
    view.close()
    assert local_runner._progress([done, TRAINER], tmp_path) is None


def test_the_live_table_shows_it_below():
    stream = io.StringIO()
    console = PlainConsole(file=stream, width=100, force_terminal=True, color_system=None)
    with LiveDisplay(console) as display:
        display.update([TRAINER], "running", SAID)
    assert SAID in stream.getvalue()


@pytest.mark.parametrize(("seconds", "lines"), [(0.0, 3), (3600.0, 0)])
def test_without_a_terminal_it_is_a_line_now_and_then(monkeypatch, seconds, lines):
    monkeypatch.setattr(progress, "PROGRESS_SECONDS", seconds)
    stream = io.StringIO()
    display = PlainDisplay(PlainConsole(file=stream, width=100))
    for _ in range(3):
        display.update([TRAINER], "running", SAID)
    assert stream.getvalue().count(SAID) == lines


def test_the_results_say_where_it_ran():
    console = PlainConsole(file=io.StringIO(), width=100)
    console.print(results_table(RunReport(ran_on="4 emulated TPU cores")))
    assert "ran on     4 emulated TPU cores" in console.file.getvalue()
