"""A run that is asked to stop does, whatever code catches its exception, and so does one whose parent is gone."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.bad_input import row
from tests.conftest import REPOSITORY
from tfx_tpu_trainer._support.progress_views import STATUS_VARIABLE
from tfx_tpu_trainer.workbench.cli.main import main
from tfx_tpu_trainer.workbench.project import roots

PROGRAM = """
import signal, time
from tfx_tpu_trainer.workbench.run import run_child

run_child.REMIND_SECONDS = 0.2
run = run_child.Stop()
run.listen()
try:
    try:
        signal.raise_signal(signal.SIGTERM)
    except Exception as error:
        print("swallowed", error, flush=True)
    while True:
        time.sleep(0.01)
except run_child.RunStoppedError as error:
    run.ended()
    # No reminder comes any more, and no other signal.
    signal.raise_signal(signal.SIGINT)
    time.sleep(0.5)
    print("ended", error, run.reason, sep="|")
"""


def test_a_swallowed_stop_comes_again_with_its_first_reason() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    reason = f"stopped by {signal.SIGTERM.name}"
    assert ended.stdout.splitlines() == [f"swallowed {reason}", f"ended|{reason}|{reason}"]


# A project whose child starts a process of its own, and then goes on for ever.
CONFIG = f"""
import os, pathlib, subprocess, time
from tfx_tpu_trainer.workbench.project.config import ProjectConfig as Config

if {STATUS_VARIABLE!r} in os.environ:
    started = subprocess.Popen(["sleep", "600"])
    pathlib.Path("started").write_text(str(started.pid))
    time.sleep(600)
"""
SETTINGS = "{name: endless, root: root, data: data, trainer: {module_file: pipeline.py, label_key: y, train_steps: 1}}"


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run of such a project, whose child has started the other process."""
    for name, text in (("config.py", CONFIG), ("config.yaml", SETTINGS), ("pipeline.py", "")):
        (tmp_path / name).write_text(text)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.csv").write_text("x\n1\n")
    command = [
        sys.executable,
        "-m",
        "tfx_tpu_trainer.workbench.cli.main",
        "run",
        "--project",
        str(tmp_path),
    ]
    with subprocess.Popen(
        command,
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # As a terminal starts it; nohup, under which tests may run, ignores it.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    ) as run:
        try:
            until(lambda: (tmp_path / "started").exists() and (tmp_path / "started").read_text())
            yield run
        finally:
            run.kill()


def until(condition: Callable[[], object]) -> None:
    ends = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Whether a process runs; one that has ended stays a zombie until its parent asks for its end."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM])
def test_a_run_ends_with_all_that_it_has_started(endless, tmp_path: Path, number: int) -> None:
    started = int((tmp_path / "started").read_text())
    assert is_running(started)
    endless.send_signal(number)
    printed = endless.stdout.read()
    if number == signal.SIGKILL:
        assert endless.wait() == -number
    else:
        assert endless.wait() == 130
        assert "stopped; run the same command again to continue" in printed
    # The next run begins at once: the child held the lock as well.
    with roots.locked(tmp_path / "root"):
        until(lambda: not is_running(started))


@row(
    "runners",
    "`tfx-tpu-trainer run`: a root where a run goes on in another process",
    "error: another run is in progress in '",
    "' (process ",
    ", which `kill ",
    "` stops); wait until it ends or choose another --root",
)
def test_a_run_that_goes_on_is_named_and_can_be_stopped(endless, tmp_path: Path, refused) -> None:
    second = CliRunner().invoke(main, ["run", "--project", str(tmp_path)])
    refused.output(second)
    assert second.exit_code == 2
    (command,) = re.findall(r"`(kill \d+)`", second.output)
    subprocess.run(shlex.split(command), check=True)
    assert endless.wait() == 130
    with roots.locked(tmp_path / "root"):
        pass


@pytest.mark.parametrize("ignored", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_the_caller_ignores_is_ignored(ignored: int) -> None:
    program = f"""
import signal, subprocess
from tfx_tpu_trainer.workbench.run.local_runner import _stopping
signal.signal({int(ignored)}, signal.SIG_IGN)
with subprocess.Popen(["true"]) as child, _stopping(child, killed=print):
    signal.raise_signal({int(ignored)})
assert signal.getsignal({int(ignored)}) is signal.SIG_IGN
"""
    subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=True)
