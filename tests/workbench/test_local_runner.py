"""Tests local runs: what is rejected before the start, and how they end when stopped or orphaned."""

import fcntl
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.bad_input import case, row
from tests.conftest import REPOSITORY
from tfx_tpu_trainer._support.progress_views import STATUS_VARIABLE
from tfx_tpu_trainer.workbench.cli.main import main
from tfx_tpu_trainer.workbench.project import roots
from tfx_tpu_trainer.workbench.project.project import find_pipeline
from tfx_tpu_trainer.workbench.run.local_runner import child_environment, how_to_go_on
from tfx_tpu_trainer.workbench.run.run_child import data_problem, one_line


def start(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["run", *arguments])


@row(
    "runners",
    "`tfx-tpu-trainer run`: `--set trainer.steps=5`",
    "error: --set trainer.steps=5: unknown key 'steps' in 'trainer'",
)
def test_a_bad_config_ends_with_one_line_and_exit_code_2(tmp_path: Path, refused) -> None:
    result = start("--pipeline", "taxi", "--root", str(tmp_path), "--set", "trainer.steps=5")
    refused.output(result)
    assert result.exit_code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        case("runners", f"`tfx-tpu-trainer run`: `{given}`", *says, values=(arguments,))
        for given, arguments, *says in (
            (
                "--pipeline digit",
                ("--pipeline", "digit"),
                "error: unknown pipeline 'digit'; did you mean 'digits'",
            ),
            (
                "--pipeline ../../x",
                ("--pipeline", "../../x"),
                "error: unknown pipeline '../../x'; pipelines here: digits, penguin, taxi",
            ),
            (
                "--root ''",
                ("--pipeline", "taxi", "--root", ""),
                "error: the command line: root: '' is not a path; give a folder",
            ),
            (
                "--root $(printf 'a\\0b')",
                ("--pipeline", "taxi", "--root", "a\0b"),
                r"error: the command line: root: 'a\x00b' is not a path; give a folder",
            ),
            (
                "--root gs://bucket/taxi",
                ("--pipeline", "taxi", "--root", "gs://bucket/taxi"),
                "error: root 'gs://bucket/taxi' is in a bucket",
                "choose a folder with --root",
            ),
            (
                "--config none.yaml",
                ("--pipeline", "taxi", "--config", "none.yaml"),
                "error: can't read the config 'none.yaml': No such file or directory; give another",
            ),
            (
                "--set data=none",
                ("--pipeline", "taxi", "--set", "data=none"),
                "error: data '",
                "none' is not a folder; set data to the folder of the input files",
            ),
            (
                "--set trainer.module_file=none.py",
                (
                    *("--pipeline", "taxi", "--set", "trainer.module=null"),
                    *("--set", "trainer.module_file=none.py"),
                ),
                "error: trainer.module_file '",
                "none.py' is not a file; give the path of a .py file",
            ),
        )
    ],
)
def test_what_cannot_start_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], refused
) -> None:
    monkeypatch.chdir(tmp_path)
    refused.output(start(*arguments))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "written",
    [
        case(
            "runners",
            f"`tfx-tpu-trainer run`: a root that another run holds, {of}",
            "error: another run is in progress in '",
            f"' ({says}); wait until it ends or choose another --root",
            values=written,
        )
        for of, written, says in (
            ("which its lock does not name", "", "its process is not known"),
            (
                "on another machine",
                # More than Linux gives to any process.
                '{"pid": 4194305}',
                "process 4194305 of another machine or container",
            ),
        )
    ],
)
def test_a_second_run_in_the_same_root_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, refused
) -> None:
    monkeypatch.setattr(roots, "_END_SECONDS", 0.2)
    with (tmp_path / ".lock").open("w") as lock:
        lock.write(written)
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused.output(start("--pipeline", "taxi", "--root", str(tmp_path)))


@row(
    "disks",
    "`tfx-tpu-trainer run`: a root below a file",
    "error: root '",
    "' can't be written to (Not a directory); choose another with --root",
)
def test_a_root_that_cannot_be_made_is_refused(tmp_path: Path, refused) -> None:
    (tmp_path / "file").touch()
    refused.output(start("--pipeline", "taxi", "--root", str(tmp_path / "file" / "root")))


@row(
    "disks",
    "`tfx-tpu-trainer run`: a file instead of the folder `logs`",
    "error: root '",
    "' can't be written to: Not a directory (",
    "choose another with --root",
)
def test_a_root_without_room_for_logs_is_refused(tmp_path: Path, refused) -> None:
    (tmp_path / "logs").touch()
    refused.output(start("--pipeline", "taxi", "--root", str(tmp_path)))


@row(
    "runners",
    "`tfx-tpu-trainer run`: a `metadata.sqlite` that is not one",
    "metadata.sqlite' can't be read as ML Metadata: ",
    "; remove the file or choose another --root",
)
def test_a_metadata_file_that_is_none_is_refused(tmp_path: Path, refused) -> None:
    (tmp_path / "metadata.sqlite").write_text(
        "no database at all, but long enough to look like a file"
    )
    refused.output(start("--pipeline", "taxi", "--root", str(tmp_path)))


def test_local_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = find_pipeline("taxi").config(root="here", overrides=["data=rides"])
    assert config.root == str(tmp_path / "here")
    assert config.data == str(tmp_path / "rides")
    assert config.metadata_file == str(tmp_path / "here" / "metadata.sqlite")


def test_what_a_stopped_run_goes_on_with_is_said(tmp_path: Path) -> None:
    config = find_pipeline("taxi").config(root=str(tmp_path))
    began = time.time() - 60
    again = "run the same command again to continue"
    cached = "completed components come from TFX's cache"
    assert how_to_go_on(config, began=began) == f"{again}: {cached}"
    for digest, steps, written in (("0123", (300, 1200), began + 1), ("4567", (9000,), began - 1)):
        folder = Path(config.checkpoint_root) / "TpuTrainer" / digest
        folder.mkdir(parents=True)
        for step in steps:
            (folder / f"model.ckpt-{step}.index").touch()
            os.utime(folder / f"model.ckpt-{step}.index", (written, written))
    training = "the training resumes from its checkpoint of step 1,200"
    assert how_to_go_on(config, began=began) == f"{again}: {cached}, {training}"
    uncached = config.model_copy(update={"enable_cache": False})
    assert how_to_go_on(uncached, began=began) == f"{again}: {training}"


def test_the_child_has_the_environment_that_tensorflow_and_tfx_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    environment = child_environment()
    assert environment["TF_USE_LEGACY_KERAS"] == "1"
    assert "PYTHONDONTWRITEBYTECODE" not in environment
    assert environment["PYTHONPATH"].split(os.pathsep)[1] == "/elsewhere"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("label_key='x' is\n not there"), "ValueError: label_key='x' is not there"),
        (KeyError("fare"), "KeyError: 'fare'"),
        (RuntimeError(), "RuntimeError"),
        (
            RuntimeError("Traceback (most recent call last):\n  File\nValueError: no [while]\n"),
            "ValueError: no [while]",
        ),
    ],
)
def test_an_exception_becomes_one_line(error: Exception, expected: str) -> None:
    assert one_line(error) == expected


def test_a_long_message_is_cut() -> None:
    assert one_line(ValueError("x" * 5000)).endswith("... (see the log for the rest)")


def make_no_file(folder: Path) -> None:
    del folder


def make_empty_file(folder: Path) -> None:
    (folder / "a.csv").touch()


def make_header(folder: Path) -> None:
    make_empty_file(folder)
    (folder / "b.csv").write_text("fare\n")


@pytest.mark.parametrize(
    "make",
    [
        case(
            "runners",
            "`tfx-tpu-trainer run`: an empty data folder",
            "contains no rows (files: 0); set data to",
            values=make_no_file,
        ),
        case(
            "runners",
            "`tfx-tpu-trainer run`: an empty file of data",
            "contains no rows (files: 1); set data to",
            values=make_empty_file,
        ),
        case(
            "runners",
            "`tfx-tpu-trainer run`: a CSV file with a header alone",
            "contains no rows (files: 2); set data to",
            values=make_header,
        ),
    ],
)
def test_data_without_rows_are_named(tmp_path: Path, make: Callable[[Path], None], refused) -> None:
    (tmp_path / "data").mkdir()
    make(tmp_path / "data")
    root = tmp_path / "root"
    refused.output(
        start("--pipeline", "taxi", "--root", str(root), "--set", f"data={tmp_path / 'data'}")
    )
    assert not root.exists()


def test_one_row_is_data(tmp_path: Path) -> None:
    make_header(tmp_path)
    (tmp_path / "b.csv").write_text("fare\n1\n")
    config = find_pipeline("taxi").config(overrides=[f"data={tmp_path}"])
    assert data_problem(config) is None


def test_a_home_that_no_shell_has_seen_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = find_pipeline("taxi").config(root="~/runs")
    assert config.root == str(tmp_path / "runs")


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


# A project whose child starts another process, and then runs forever.
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
    """A run of this project, whose child has started the other process."""
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
    """Returns whether a process runs; one that has ended stays a zombie until its parent waits for it."""
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
    # The next run begins at once, although the child held the lock, too.
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
