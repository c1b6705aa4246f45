from __future__ import annotations

import os

import numpy as np
import pytest
import tensorflow as tf

from tests.engine.saved_graphs import save
from tfx_tpu_trainer.engine.checkpointing import checkpoints
from tfx_tpu_trainer.engine.checkpointing.checkpoints import check_writable


@pytest.mark.behaviour(278, 279)
def test_an_empty_folder_has_no_checkpoint(tmp_path):
    folder = str(tmp_path)
    assert checkpoints.latest_checkpoint(folder) is None
    assert checkpoints.global_step_of(folder) == 0
    for read in (checkpoints.require_checkpoint, checkpoints.variable_names):
        with pytest.raises(
            ValueError, match=f"Could not find trained model in model_dir: {folder}"
        ):
            read(folder)
    with pytest.raises(ValueError, match="Could not find trained model"):
        checkpoints.variable_value(folder, "layer/weights")


@pytest.mark.behaviour(278)
def test_the_latest_checkpoint_is_read(tmp_path):
    save(tmp_path, 3, 12)
    folder = str(tmp_path)
    assert checkpoints.latest_checkpoint(folder) == str(tmp_path / "model.ckpt-12")
    assert checkpoints.require_checkpoint(folder) == str(tmp_path / "model.ckpt-12")
    assert checkpoints.global_step_of(folder) == 12
    assert checkpoints.variable_names(folder) == ["global_step", "layer/weights"]


@pytest.mark.parametrize("name", ["layer/weights", "layer/weights:0"])
@pytest.mark.behaviour(278)
def test_a_variables_value(tmp_path, name):
    save(tmp_path, 7)
    np.testing.assert_array_equal(checkpoints.variable_value(str(tmp_path), name), [7, 7])


def test_an_unknown_variable_is_refused_with_the_known_ones(tmp_path):
    save(tmp_path, 7)
    with pytest.raises(
        tf.errors.NotFoundError, match=r"Key bias not found in checkpoint .* global_step, layer/w"
    ):
        checkpoints.variable_value(str(tmp_path), "bias")


def test_a_checkpoint_without_a_global_step_counts_from_zero(tmp_path):
    save(tmp_path, 7, with_global_step=False)
    assert checkpoints.global_step_of(str(tmp_path)) == 0


@pytest.mark.behaviour(160)
def test_the_global_step_of_an_object_based_checkpoint_is_found(tmp_path):
    step = tf.Variable(12, dtype=tf.int64, name="global_step")
    tf.train.Checkpoint(counter=step).save(str(tmp_path / "model.ckpt"))
    assert checkpoints.global_step_of(str(tmp_path)) == 12


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
