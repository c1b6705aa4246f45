from __future__ import annotations

import os
import uuid

import pytest
import tensorflow as tf

from tfx_tpu_trainer.evaluation.whole_files import written_whole


def _write(folder, name, text="x"):
    with tf.io.gfile.GFile(os.path.join(folder, name), "w") as file:
        file.write(text)


@pytest.fixture(params=["local", "remote"])
def parent(request, tmp_path):
    # ram:// goes through the same tf.io.gfile calls as gs:// and has no folder renames either.
    return str(tmp_path) if request.param == "local" else f"ram://{uuid.uuid4().hex}"


def _write_whole(uri, **options):
    with written_whole(uri, **options) as folder:
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
        with written_whole(uri) as folder:
            _write(folder, "a")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_half_way()
    assert tf.io.gfile.listdir(uri) == []
    assert tf.io.gfile.listdir(parent) == ["5"]
