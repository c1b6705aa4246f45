from __future__ import annotations

import json
import multiprocessing
import os
import pathlib
import signal
import sys
import time
from types import ModuleType

import pytest

from tfx_tpu_trainer.serving._fresh_process import FreshProcess, FreshProcessError

MODULE = "tests.serving.ends_badly"


def run_fresh(way):
    with FreshProcess(MODULE) as process:
        process.run([way], timeout_seconds=60)


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("killed", "its process was killed by SIGKILL"),
        ("raises", "ValueError: the reason"),
        ("silent", "its process ended with exit code 3"),
    ],
)
def test_a_bad_end_has_a_reason_of_one_line(way, reason):
    with pytest.raises(FreshProcessError) as caught:
        run_fresh(way)
    assert str(caught.value) == reason


def test_a_good_end_says_nothing(capfd):
    run_fresh("well")
    assert capfd.readouterr() == ("", "")


def test_keras_is_not_imported_and_is_there_when_it_is_asked_for(tmp_path):
    found = told(tmp_path, "tests.serving.tells_imports")
    assert found["with_tensorflow"] == []
    assert found["keras"].startswith("tf_keras")


def test_beside_an_op_library_nothing_is_spared(tmp_path, monkeypatch):
    blocked = {}
    for libraries in ([], ["struct2tensor"]):
        for name in libraries:
            (tmp_path / f"{name}.py").touch()
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        blocked[bool(libraries)] = told(tmp_path, "tests.serving.tells_blocked_imports")
    assert "keras" in blocked[False] and "tf_keras" in blocked[False]
    assert blocked[True] == []


@pytest.mark.sweep
def test_an_op_library_finds_keras_where_tensorflow_has_it(tmp_path, monkeypatch):
    library = tmp_path / "struct2tensor.py"
    library.write_text("from tensorflow.keras import layers\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "struct2tensor", ModuleType("struct2tensor"))
    assert "tf_keras" in told(tmp_path, "tests.serving.tells_imports")["with_tensorflow"]


def told(folder, module):
    """What a module of this folder tells in a process of its own."""
    with FreshProcess(module) as process:
        process.run([str(folder / "told.json")], timeout_seconds=120)
    return json.loads((folder / "told.json").read_text(encoding="utf-8"))


def test_files_of_the_working_directory_are_not_imported(tmp_path, monkeypatch):
    # Python's own are what is meant; the process imports several of them before its module.
    for name in ("csv", "runpy", "signal", "tests"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('of the working directory')")
    monkeypatch.chdir(tmp_path)
    run_fresh("well")


def test_a_process_that_is_not_needed_ends(capfd):
    with FreshProcess(MODULE) as process:
        os.kill(process.pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    assert capfd.readouterr() == ("", "")


def test_a_process_whose_starter_has_died_ends():
    # The starter is killed, so that nothing of it can tidy up. Forked, which spares it the imports.
    starter = multiprocessing.get_context("fork")
    receiver, sender = starter.Pipe(duplex=False)
    process = starter.Process(target=_start_and_die, args=(sender,))
    process.start()
    assert receiver.poll(60)
    started = receiver.recv()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while _runs(started):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _start_and_die(sender):
    sender.send(FreshProcess(MODULE).pid)
    os.kill(os.getpid(), signal.SIGKILL)


def _runs(pid):
    """Whether a process runs; one that has ended stays listed where nobody waits for it."""
    try:
        return " Z " not in pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
