from __future__ import annotations

import os

import pytest
import tensorflow as tf

from tfx_tpu_trainer.engine.checkpointing.writable_folder import check_writable


def test_a_folder_is_made_and_left_as_it_was(tmp_path):
    folder = tmp_path / "new" / "model"
    check_writable(str(folder))
    assert os.listdir(folder) == []
    (folder / "checkpoint").write_text("")
    check_writable(str(folder))
    assert os.listdir(folder) == ["checkpoint"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    folder = str(tmp_path / "file" / "model")
    says = f"^model_dir '{folder}' can't be written: .* Give another model_dir"
    with pytest.raises(tf.errors.FailedPreconditionError, match=says):
        check_writable(folder)
