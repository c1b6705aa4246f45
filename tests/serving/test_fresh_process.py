from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time
from types import ModuleType

import pytest

from tfx_tpu_trainer.serving.fresh_process import FreshProcess, FreshProcessError

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
    told = told_imports(tmp_path)
    assert told["with_tensorflow"] == []
    assert told["keras"].startswith("tf_keras")


def test_an_op_library_finds_keras_where_tensorflow_has_it(tmp_path, monkeypatch):
    library = tmp_path / "struct2tensor.py"
    library.write_text("from tensorflow.keras import layers\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "struct2tensor", ModuleType("struct2tensor"))
    assert "tf_keras" in told_imports(tmp_path)["with_tensorflow"]


def told_imports(folder):
    with FreshProcess("tests.serving.tells_imports") as process:
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
    # The starter is killed, so that nothing of it can tidy up.
    starter = (
        "import os, signal\n"
        "from tfx_tpu_trainer.serving.fresh_process import FreshProcess\n"
        f"print(FreshProcess({MODULE!r}).pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    died = subprocess.run([sys.executable, "-c", starter], stdout=subprocess.PIPE, timeout=120)
    deadline = time.monotonic() + 60
    while _runs(int(died.stdout)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _runs(pid):
    """Whether a process runs; one that has ended stays listed where nobody waits for it."""
    try:
        return " Z " not in pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
