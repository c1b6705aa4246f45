from __future__ import annotations

import os
import time

import pytest

from tfx_tpu_trainer.estimator.export import _version_folder as module
from tfx_tpu_trainer.estimator.export._version_folder import version_folder


def write(folder):
    with open(os.path.join(folder, "file"), "w", encoding="utf-8") as file:
        file.write("content")


@pytest.mark.behaviour(310)
def test_a_version_appears_when_it_is_complete(tmp_path):
    base = str(tmp_path / "versions")
    before = int(time.time())
    with version_folder(base) as (temporary, final):
        write(temporary)
        assert os.listdir(base) == [os.path.basename(temporary)]
        assert os.path.basename(temporary) == f"temp-{os.path.basename(final)}"
    assert os.listdir(base) == [os.path.basename(final)]
    assert os.listdir(final) == ["file"]
    assert before <= int(os.path.basename(final)) <= time.time()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.behaviour(310)
def test_a_failure_leaves_nothing(tmp_path, error):
    def write_half():
        with version_folder(str(tmp_path)) as (temporary, _):
            write(temporary)
            raise error

    with pytest.raises(error):
        write_half()
    assert os.listdir(tmp_path) == []


@pytest.mark.behaviour(310)
def test_a_taken_version_is_left_alone(tmp_path):
    now = int(time.time())
    taken = [str(now), f"temp-{now + 1}"]
    for name in taken:
        (tmp_path / name).mkdir()
    with version_folder(str(tmp_path)) as (temporary, final):
        write(temporary)
    assert int(os.path.basename(final)) >= now + 2
    assert os.listdir(tmp_path / taken[0]) == []
    assert os.listdir(tmp_path / taken[1]) == []


@pytest.mark.behaviour(310)
def test_ten_taken_versions_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_ATTEMPTS", 1)
    now = int(time.time())
    for second in range(now, now + 10):
        (tmp_path / str(second)).mkdir()
    with (
        pytest.raises(RuntimeError, match="unique export directory name after 1 attempts"),
        version_folder(str(tmp_path)),
    ):
        raise AssertionError("no version is free")
