"""Tests that files and folders appear completely or not at all, also where folders can't be renamed."""

import errno
import multiprocessing
import os
import pty
import signal
import subprocess
import sys
import threading
import uuid
from typing import Any

import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.conftest import REPOSITORY
from tfx_tpu_trainer._support import file_systems, whole_files
from tfx_tpu_trainer._support.file_systems import check_can_be_written
from tfx_tpu_trainer._support.whole_files import (
    commit_folder,
    folder_written_whole,
    sweep,
    temporary_beside,
    try_writing,
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
    with pytest.raises(FileExistsError, match=r"already contains thesis\.tex"):
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


@pytest.mark.parametrize("others", ["theirs", None])
def test_a_folder_that_another_process_puts_in_place_meanwhile_stays(tmp_path, monkeypatch, others):
    uri, written = tmp_path / "5", tmp_path / "written"
    for folder, text in ((uri, "former"), (written, "ours")):
        folder.mkdir()
        (folder / "a").write_text(text)
    rename = os.rename

    def interrupted(source, target):
        if source == str(written):
            if others:
                uri.mkdir()
                (uri / "a").write_text(others)
            raise OSError("Directory not empty")
        rename(source, target)

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(OSError, match="not empty"):
        commit_folder(str(written), str(uri))
    assert sorted(os.listdir(tmp_path)) == ["5", "written"]
    assert (uri / "a").read_text() == (others or "former")


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
    kept = [
        os.path.join(folder, "export"),
        *(temporary_beside(os.path.join(parent, name)) for name in ("15", "of-5")),
    ]
    for path in (*left, *kept):
        write_whole(os.path.join(path, "file"), "")
    file_left = temporary_beside(os.path.join(folder, "eval_metrics.json"))
    _write(folder, os.path.basename(file_left))
    assert sorted(sweep(folder)) == sorted([*left, file_left])
    assert all(map(tf.io.gfile.exists, kept))
    assert not any(map(tf.io.gfile.exists, [*left, file_left]))
    assert sweep(os.path.join(parent, "not_there")) == []


def _write_for_ever(folder: str, wrote: Any) -> None:
    for text in iter(lambda: "x" * 100_000, None):
        write_whole(os.path.join(folder, "file"), text)
        with folder_written_whole(os.path.join(folder, "of"), replaceable=["a"]) as written:
            write_whole(os.path.join(written, "a"), text)
        wrote.set()


def test_what_a_held_up_check_of_a_folder_has_written_is_swept_and_not_missed(
    tmp_path, monkeypatch
):
    remove = tf.io.gfile.remove

    def swept_before(path):
        assert [path] == sweep(str(tmp_path))
        remove(path)

    monkeypatch.setattr(tf.io.gfile, "remove", swept_before)
    try_writing(str(tmp_path))
    assert not any(tmp_path.iterdir())


def test_killed_at_any_moment_all_that_is_seen_is_whole(tmp_path):
    processes = multiprocessing.get_context("fork")
    for killed_after in range(1, 9):
        wrote = processes.Event()
        process = processes.Process(target=_write_for_ever, args=[str(tmp_path), wrote])
        process.start()
        # A fork of a large process takes its time to begin.
        assert wrote.wait(60)
        process.join(0.013 * killed_after)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert (tmp_path / "file").read_text() == "x" * 100_000
        # It is gone for the moment between two renames.
        if (tmp_path / "of" / "a").exists():
            assert (tmp_path / "of" / "a").read_text() == "x" * 100_000
        sweep(str(tmp_path))
        sweep(str(tmp_path / "of"))
        assert {path.name for path in tmp_path.iterdir()} <= {"file", "of"}


def _versions_seen(uri):
    """Returns what a reader that relies on the marker sees: the version of each file, or nothing."""
    if not tf.io.gfile.exists(os.path.join(uri, "saved_model.pb")):
        return None
    names = whole_files.files_below(uri)
    return {
        name: tf.io.gfile.GFile(os.path.join(uri, name)).read()
        for name in (*names, "variables/values", "assets/words")
    }


def _make_model(uri, text):
    for name in ("saved_model.pb", "variables/values", "assets/words"):
        write_whole(os.path.join(uri, name), text)


def test_where_folders_can_not_be_renamed_the_marker_comes_last_and_goes_first(monkeypatch):
    uri, written = (f"ram://{uuid.uuid4().hex}/{name}" for name in ("model", "written"))
    _make_model(uri, "old")
    _make_model(written, "new")
    seen = []
    for name in ("rename", "remove", "rmtree"):
        original = getattr(tf.io.gfile, name)

        def watched(*arguments, original=original, **options):
            result = original(*arguments, **options)
            seen.append(_versions_seen(uri))
            return result

        monkeypatch.setattr(tf.io.gfile, name, watched)
    rmtree = tf.io.gfile.rmtree

    def one_by_one(folder):
        # In an order that is not ours; here the worst one.
        for name in sorted(whole_files.files_below(folder), reverse=True):
            tf.io.gfile.remove(os.path.join(folder, name))
        rmtree(folder)

    monkeypatch.setattr(tf.io.gfile, "rmtree", one_by_one)
    commit_folder(written, uri, last=["saved_model.pb"])
    assert len(seen) >= 5
    assert seen[0] is None
    assert [each for each in seen if each is not None] == [
        {"saved_model.pb": "new", "variables/values": "new", "assets/words": "new"}
    ] * 2
    assert _versions_seen(uri)["assets/words"] == "new"


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(whole_files, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(whole_files, "_MARKER_SECONDS", 0.1)


def test_a_reader_waits_for_the_marker_of_a_folder_that_is_being_written(
    quick, monkeypatch, caplog
):
    monkeypatch.setattr(whole_files, "_MARKER_SECONDS", 30.0)
    uri = f"ram://{uuid.uuid4().hex}/evaluation"
    write_whole(os.path.join(uri, "metrics"), "")
    marker = os.path.join(uri, "eval_config.json")
    writer = threading.Timer(0.1, write_whole, [marker, "{}"])
    writer.start()
    with caplog.at_level("INFO"):
        assert whole_files.is_whole(uri, ["eval_config.json"])
    assert tf.io.gfile.exists(marker)
    assert caplog.text.count("for eval_config.json in ram://") == 1
    writer.join()


@row(
    "disks",
    "a folder in a bucket whose writer was killed before its last file",
    "is incomplete",
    "no eval_config.json, which is written last",
    "or write it again",
)
def test_a_marker_that_does_not_come_is_named(quick, refused):
    uri = f"ram://{uuid.uuid4().hex}/evaluation"
    write_whole(os.path.join(uri, "metrics"), "")
    with refused(FileNotFoundError):
        whole_files.is_whole(uri, ["eval_config.json"])


def test_nobody_waits_where_nothing_is_written_or_folders_are_renamed(tmp_path, quick, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("it waits"))
    (tmp_path / "file").write_text("")
    for folder in (str(tmp_path), f"file://{tmp_path}", f"ram://{uuid.uuid4().hex}"):
        assert not whole_files.is_whole(folder, ["marker"])


def test_a_folder_of_a_file_system_that_renames_them_is_renamed_at_once(tmp_path, monkeypatch):
    # Like hdfs://; the local file system replaces it, for its scheme and in TensorFlow.
    monkeypatch.setattr(file_systems, "_LOCAL", ("",))
    written, uri = (f"file://{tmp_path / name}" for name in ("written", "model"))
    _make_model(uri, "old")
    _make_model(written, "new")
    renamed = []
    original = tf.io.gfile.rename
    monkeypatch.setattr(
        tf.io.gfile, "rename", lambda *names: (renamed.append(names), original(*names))
    )
    commit_folder(written, uri)
    assert [target == uri for _, target in renamed] == [False, True]
    assert _versions_seen(uri)["variables/values"] == "new"
    assert os.listdir(tmp_path) == ["model"]


def test_a_local_path_with_its_scheme_is_a_local_path(tmp_path):
    write_whole(f"file://{tmp_path}/a/file", "x")
    commit_folder(f"file://{tmp_path}/a", f"file://{tmp_path}/b")
    assert (tmp_path / "b" / "file").read_text() == "x"
    assert os.listdir(tmp_path) == ["b"]


@pytest.mark.parametrize("target", ["file", "deep/er/missing"])
def test_a_link_stays_and_what_it_names_is_written(tmp_path, target):
    (tmp_path / "file").write_text("before")
    (tmp_path / "further").symlink_to(target)
    (tmp_path / "link").symlink_to(tmp_path / "further")
    write_whole(tmp_path / "link", "after")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "further").is_symlink()
    assert (tmp_path / target).read_text() == "after"
    assert not [path for path in tmp_path.rglob("*") if whole_files.is_temporary(path.name)]


def test_a_link_to_itself_is_an_error_and_stays(tmp_path):
    (tmp_path / "link").symlink_to("link")
    with pytest.raises(OSError, match="symbolic links; choose another path"):
        write_whole(tmp_path / "link", "after")
    assert os.listdir(tmp_path) == ["link"]


def test_a_link_to_a_folder_stays_and_the_folder_is_replaced(tmp_path):
    (tmp_path / "elsewhere" / "folder").mkdir(parents=True)
    (tmp_path / "link").symlink_to("elsewhere/folder")
    _write_whole(str(tmp_path / "link"))
    assert (tmp_path / "link").is_symlink()
    assert sorted(os.listdir(tmp_path / "elsewhere" / "folder")) == ["a", "b"]
    assert os.listdir(tmp_path / "elsewhere") == ["folder"]


def _terminal(folder):
    del folder
    return pty.openpty()


def _pipe(folder):
    os.mkfifo(folder / "pipe")
    reads = os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    return reads, os.open(folder / "pipe", os.O_WRONLY)


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("opened", [_terminal, _pipe])
def test_a_device_or_a_pipe_is_written_to_and_stays(tmp_path, opened, linked):
    reads, writes = opened(tmp_path)
    # As /dev/stdout does for a pipe that has no name, /proc names one that is open.
    path = f"/proc/self/fd/{writes}" if linked else os.readlink(f"/proc/self/fd/{writes}")
    before = os.stat(path)
    check_can_be_written("--html", path)
    write_whole(path, "text")
    assert os.read(reads, 100) == b"text"
    assert os.path.samestat(os.stat(path), before)
    os.close(reads)
    os.close(writes)


def test_what_is_printed_can_be_piped_through_dev_stdout():
    program = "from tfx_tpu_trainer._support.whole_files import write_whole; write_whole('/dev/stdout', 'x' * 100_000)"
    printed = subprocess.check_output([sys.executable, "-c", program], cwd=REPOSITORY)
    assert printed == b"x" * 100_000


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path):
    (tmp_path / "program").write_text("before")
    (tmp_path / "program").chmod(0o750)
    write_whole(tmp_path / "program", "after")
    assert (tmp_path / "program").stat().st_mode & 0o777 == 0o750


def test_a_disk_that_is_full_when_the_file_is_synced_leaves_what_was_there(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("before")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "file", "after")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "before"
