"""Repairs kept between runs: found again, and never in the way."""

from __future__ import annotations

import json

import pytest

from tfx_tpu_trainer.compat.repairing import repair_cache
from tfx_tpu_trainer.compat.repairing.own_files import OwnFiles
from tfx_tpu_trainer.compat.repairing.repair_cache import Repair
from tfx_tpu_trainer.compat.repairing.repairs import Repairs

ORIGINAL = "import tensorflow as tf\nfor key in {'é': 1}.iterkeys():\n    pass\n"
REPAIRED = ORIGINAL.replace("iterkeys", "keys")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tfx_tpu_trainer" / "repairs"


def _text(path: str = "program.py", original: str = ORIGINAL) -> str:
    return Repairs(OwnFiles([]), shown=False).text_to_run(path, original)


def test_a_kept_repair_is_used(folder):
    assert repair_cache.load(ORIGINAL) is None
    assert _text() == REPAIRED
    assert repair_cache.load(ORIGINAL) == Repair(REPAIRED, None)
    (file,) = folder.iterdir()
    assert file.suffix == ".json"
    # By its content: another text has none.
    assert repair_cache.load(ORIGINAL + "\n") is None


def test_it_is_one_for_each_version_of_the_doctor(monkeypatch):
    repair_cache.keep(ORIGINAL, Repair("x = 1\n", None))
    assert _text() == "x = 1\n"
    monkeypatch.setattr(repair_cache, "_makers_digest", lambda: "another")
    assert _text() == REPAIRED


def test_a_repair_that_can_not_be_read_is_made_anew(folder):
    for damage in ("", "{", "[]", '{"text": "import os\\n", "tensorflow": null, "digest": "x"}'):
        repair_cache.keep(ORIGINAL, Repair(REPAIRED, None))
        (file,) = folder.iterdir()
        file.write_text(damage, encoding="utf-8")
        assert repair_cache.load(ORIGINAL) is None
        assert _text() == REPAIRED
        assert json.loads(file.read_text(encoding="utf-8"))["text"] == REPAIRED
    file.write_bytes(b"\xff\xfe")
    assert _text() == REPAIRED


def test_what_is_left_to_be_edited_is_shown_each_time(capsys):
    original = "import tensorflow as tf\nx = tf.contrib.nccl\n"
    for _ in range(2):
        repairs = Repairs(OwnFiles([]), shown=True)
        # TensorFlow's behaviour is to stay: this process goes on with other tests.
        repairs._tensorflow = 2
        repairs.text_to_run("program.py", original)
        assert (
            "program.py, to edit by hand: line 2, tf.compat.v1.contrib.nccl: "
            in capsys.readouterr().err
        )


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert _text() == REPAIRED
    assert repair_cache.load(ORIGINAL) is None


def test_without_the_variable_it_is_below_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert repair_cache.cache_folder() == tmp_path / ".cache" / "tfx_tpu_trainer" / "repairs"
