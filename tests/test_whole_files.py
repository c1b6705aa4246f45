"""Files and folders appear whole or not at all, on a local disk and where folders can't be renamed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import uuid

import pytest
import tensorflow as tf

from tfx_tpu_trainer import whole_files
from tfx_tpu_trainer.whole_files import (
    commit_folder,
    folder_written_whole,
    sweep,
    temporary_beside,
    write_whole,
)


def _write(folder, name, text="x"):
    with tf.io.gfile.GFile(os.path.join(folder, name), "w") as file:
        file.write(text)


@pytest.fixture(params=["local", "remote"])
def parent(request, tmp_path):
    # ram:// goes through the same tf.io.gfile calls as gs:// and has no folder renames either.
    return str(tmp_path) if request.param == "local" else f"ram://{uuid.uuid4().hex}"


def _write_whole(uri, **options):
    with folder_written_whole(uri, **options) as folder:
        _write(folder, "a")
        _write(folder, "b")


@pytest.mark.parametrize("suffix", ["new", "deep/er/new", "trailing/"])
def test_folder_is_made(parent, suffix):
    uri = os.path.join(parent, suffix)
    _write_whole(uri)
    assert sorted(tf.io.gfile.listdir(uri)) == ["a", "b"]


def test_empty_folder_is_filled(parent):
    uri = os.path.join(parent, "5")
    tf.io.gfile.makedirs(uri)
    _write_whole(uri)
    assert sorted(tf.io.gfile.listdir(uri)) == ["a", "b"]
    assert tf.io.gfile.listdir(parent) == ["5"]


def test_an_earlier_attempt_is_replaced(parent):
    uri = os.path.join(parent, "5")
    tf.io.gfile.makedirs(uri)
    _write(uri, "a", "old")
    _write(uri, "gone", "old")
    _write_whole(uri, replaceable=("a", "gone"))
    assert sorted(tf.io.gfile.listdir(uri)) == ["a", "b"]
    assert tf.io.gfile.GFile(os.path.join(uri, "a")).read() == "x"


def test_other_files_are_not_touched(parent):
    uri = os.path.join(parent, "home")
    tf.io.gfile.makedirs(uri)
    _write(uri, "thesis.tex")
    with pytest.raises(FileExistsError, match=r"already holds thesis\.tex"):
        _write_whole(uri)
    assert tf.io.gfile.listdir(uri) == ["thesis.tex"]


def test_a_file_in_the_way_is_named(parent):
    tf.io.gfile.makedirs(parent)
    _write(parent, "file")
    with pytest.raises(FileExistsError, match="is a file"):
        _write_whole(os.path.join(parent, "file"))


def test_nothing_half_written_remains(parent):
    uri = os.path.join(parent, "5")
    tf.io.gfile.makedirs(uri)

    def fail_half_way():
        with folder_written_whole(uri) as folder:
            _write(folder, "a")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_half_way()
    assert tf.io.gfile.listdir(uri) == []
    assert tf.io.gfile.listdir(parent) == ["5"]


@pytest.mark.parametrize("content", ["text, ü", b"\0\xff"])
def test_a_file_is_written_or_replaced(parent, content):
    path = os.path.join(parent, "deep/er/file")
    write_whole(path, "before")
    write_whole(path, content)
    with tf.io.gfile.GFile(path, "rb") as file:
        assert file.read() == (content.encode() if isinstance(content, str) else content)
    assert tf.io.gfile.listdir(os.path.dirname(path)) == ["file"]


def test_a_file_that_can_not_be_put_in_its_place_leaves_nothing(tmp_path):
    (tmp_path / "taken" / "by_a_folder").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "taken", "text")
    assert os.listdir(tmp_path) == ["taken"]


def test_a_committed_folder_takes_the_place_of_a_former_attempts(parent):
    written, uri = os.path.join(parent, "written"), os.path.join(parent, "model")
    for folder in (written, uri):
        tf.io.gfile.makedirs(os.path.join(folder, "variables"))
    _write(uri, "of_the_former")
    _write(written, "saved_model.pb")
    _write(os.path.join(written, "variables"), "values")
    commit_folder(written, uri, last=["saved_model.pb"])
    assert sorted(whole_files.files_below(uri)) == ["saved_model.pb", "variables/values"]
    assert [name.rstrip("/") for name in tf.io.gfile.listdir(parent)] == ["model"]


def test_what_was_left_in_a_folder_and_beside_it_is_swept_and_nothing_else(parent):
    folder = os.path.join(parent, "5")
    left = [temporary_beside(os.path.join(folder, "export")), temporary_beside(folder)]
    kept = [os.path.join(folder, "export"), temporary_beside(os.path.join(parent, "15"))]
    for path in (*left, *kept):
        write_whole(os.path.join(path, "file"), "")
    file_left = temporary_beside(os.path.join(folder, "eval_metrics.json"))
    _write(folder, os.path.basename(file_left))
    assert sorted(sweep(folder)) == sorted([*left, file_left])
    assert all(map(tf.io.gfile.exists, kept))
    assert not any(map(tf.io.gfile.exists, [*left, file_left]))
    assert sweep(os.path.join(parent, "not_there")) == []


def _write_for_ever(folder: str) -> None:
    for text in iter(lambda: "x" * 100_000, None):
        write_whole(os.path.join(folder, "file"), text)
        with folder_written_whole(os.path.join(folder, "of"), replaceable=["a"]) as written:
            write_whole(os.path.join(written, "a"), text)


def test_killed_at_any_moment_all_that_is_seen_is_whole(tmp_path):
    processes = multiprocessing.get_context("fork")
    seen = 0
    for killed_after in range(1, 9):
        process = processes.Process(target=_write_for_ever, args=[str(tmp_path)])
        process.start()
        process.join(0.013 * killed_after)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        for path in (tmp_path / "file", tmp_path / "of" / "a"):
            if path.exists():
                assert path.read_text() == "x" * 100_000
                seen += 1
        sweep(str(tmp_path))
        sweep(str(tmp_path / "of"))
        assert {path.name for path in tmp_path.iterdir()} <= {"file", "of"}
    assert seen
