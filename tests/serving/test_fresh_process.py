from __future__ import annotations

import pytest

from tfx_tpu_trainer.serving.fresh_process import FreshProcessError, run_fresh

MODULE = "tests.serving.ends_badly"


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
        run_fresh(MODULE, [way], timeout_seconds=60)
    assert str(caught.value) == reason


def test_a_good_end_says_nothing(capfd):
    run_fresh(MODULE, ["well"], timeout_seconds=60)
    assert capfd.readouterr() == ("", "")


def test_files_of_the_working_directory_are_not_imported(tmp_path, monkeypatch):
    # Python's own are what is meant; the process imports several of them before its module.
    for name in ("csv", "runpy", "signal", "tests"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('of the working directory')")
    monkeypatch.chdir(tmp_path)
    run_fresh(MODULE, ["well"], timeout_seconds=60)
