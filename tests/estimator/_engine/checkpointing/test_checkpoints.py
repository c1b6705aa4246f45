from __future__ import annotations

import os

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import case, row
from tests.estimator._engine.saved_graphs import save
from tfx_tpu_trainer.estimator._engine.checkpointing import checkpoints
from tfx_tpu_trainer.estimator._engine.checkpointing.checkpoints import check_writable

v1 = tf.compat.v1


@pytest.mark.behaviour(278, 279)
@row(
    "checkpoints",
    "a variable of a model_dir without checkpoints",
    "Could not find trained model in model_dir: ",
    "Train first, or name the folder of a trained model",
)
def test_an_empty_folder_has_no_checkpoint(tmp_path, refused):
    folder = str(tmp_path)
    assert checkpoints.latest_checkpoint(folder) is None
    assert checkpoints.global_step_of(folder) == 0
    for read in (checkpoints.require_checkpoint, checkpoints.variable_names):
        with refused(ValueError):
            read(folder)
    with refused(ValueError):
        checkpoints.variable_value(folder, "layer/weights")


_SOUND = "the latest readable checkpoint is", "model.ckpt-12: write its name into the file with"


@pytest.mark.parametrize(
    "content",
    [
        case(
            "checkpoints",
            "an empty file `checkpoint`",
            "/checkpoint can't be read (Invalid checkpoint state",
            *_SOUND,
            values=b"",
        ),
        case(
            "checkpoints",
            "a file `checkpoint` with bytes that are not text",
            "/checkpoint can't be read ('utf-8' codec",
            *_SOUND,
            values=b"\xff\xfe garbage",
        ),
        case(
            "checkpoints",
            "a file `checkpoint` with another text",
            "/checkpoint names a checkpoint that does not exist: it was changed after it was written",
            *_SOUND,
            values=b"hello: [world",
        ),
        case(
            "checkpoints",
            "a file `checkpoint` that names one which is gone",
            "/checkpoint names a checkpoint that does not exist",
            *_SOUND,
            values=b'model_checkpoint_path: "model.ckpt-99"',
        ),
    ],
)
def test_a_damaged_state_is_no_reason_to_begin_anew(tmp_path, content, refused):
    save(tmp_path, 3, 12)
    (tmp_path / "checkpoint").write_bytes(content)
    with refused(tf.errors.DataLossError) as raised:
        checkpoints.latest_checkpoint(str(tmp_path))
    # What the message advises.
    advised = f"update_checkpoint_state({str(tmp_path)!r}, 'model.ckpt-12')"
    assert advised in str(raised.value)
    v1.train.update_checkpoint_state(str(tmp_path), "model.ckpt-12")
    assert checkpoints.global_step_of(str(tmp_path)) == 12


@row(
    "checkpoints",
    "a file `checkpoint` beside no checkpoint",
    "/checkpoint names a checkpoint that does not exist: ",
    "remove it to train from scratch",
)
def test_a_state_beside_no_checkpoint(tmp_path, refused):
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-99"')
    with refused(tf.errors.DataLossError):
        checkpoints.latest_checkpoint(str(tmp_path))


@row(
    "checkpoints",
    "a variable's value in a checkpoint that was cut off",
    "The checkpoint",
    "model.ckpt-12 can't be read (",
    "it was cut off or changed after it was written; the latest readable one before it is",
    "model.ckpt-3",
)
def test_a_value_that_cannot_be_read(tmp_path, refused):
    save(tmp_path, 3, 12)
    data = tmp_path / "model.ckpt-12.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:3])
    with refused(tf.errors.DataLossError):
        checkpoints.variable_value(str(tmp_path), "layer/weights")


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


@row(
    "checkpoints",
    "a variable that a checkpoint has not",
    "Key bias not found in checkpoint",
    "model.ckpt-7; it has: global_step, layer/weights",
)
def test_an_unknown_variable_is_refused_with_the_known_ones(tmp_path, refused):
    save(tmp_path, 7)
    with refused(tf.errors.NotFoundError):
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


@row(
    "disks",
    "a model_dir below a file",
    "model_dir '",
    "/file/model' can't be written: ",
    "is not a directory. Give another model_dir, or permission to write to this one",
)
def test_a_folder_that_cannot_be_made_is_named(tmp_path, refused):
    (tmp_path / "file").write_text("")
    folder = str(tmp_path / "file" / "model")
    with refused(tf.errors.FailedPreconditionError):
        check_writable(folder)
