"""Models in buckets, where a folder's files appear one by one."""

from __future__ import annotations

import threading
import uuid

import pytest
import tensorflow as tf

from tests.serving.saved_models import save_metagraphs
from tfx_tpu_trainer._support import whole_files
from tfx_tpu_trainer.components.trainer.artifacts import copy_folder
from tfx_tpu_trainer.serving import describe_saved_model, find_saved_model


@pytest.fixture
def versions(tmp_path, monkeypatch):
    """Two versions of a model in a bucket; the newer one has come without its last file."""
    monkeypatch.setattr(whole_files, "_POLL_SECONDS", 0.02)
    model = save_metagraphs(str(tmp_path / "model"), ["serve"])
    base = f"ram://{uuid.uuid4().hex}/taxi"
    for version in ("9", "10"):
        copy_folder(model, f"{base}/{version}")
    tf.io.gfile.remove(f"{base}/10/saved_model.pb")
    return base


def test_the_newest_version_that_is_whole_is_found(versions):
    assert find_saved_model(versions) == f"{versions}/9"


@pytest.mark.parametrize("read", [find_saved_model, describe_saved_model])
def test_a_version_that_is_being_written_is_waited_for(versions, read):
    tf.io.gfile.makedirs(f"{versions}/10")
    writer = threading.Timer(
        0.1,
        tf.io.gfile.copy,
        [f"{versions}/9/saved_model.pb", f"{versions}/10/saved_model.pb"],
    )
    writer.start()
    found = read(f"{versions}/10")
    assert found == f"{versions}/10" or [each.tags for each in found] == [("serve",)]
    writer.join()
