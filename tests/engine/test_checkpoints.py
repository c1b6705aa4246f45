from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.engine import checkpoints
from tfx_tpu_trainer.engine.tracing import fresh_graph

v1 = tf.compat.v1


def _save(folder, *steps: int, with_global_step: bool = True) -> None:
    with fresh_graph():
        global_step = v1.train.get_global_step()
        weights = v1.get_variable("layer/weights", initializer=np.float32([1, 2]))
        saver = v1.train.Saver([weights, global_step] if with_global_step else [weights])
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for step in steps:
                session.run(global_step.assign(step))
                session.run(weights.assign([step, step]))
                saver.save(session, str(folder / "model.ckpt"), global_step=step)


def test_b278_b279_an_empty_folder_has_no_checkpoint(tmp_path):
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


def test_b278_the_latest_checkpoint_is_read(tmp_path):
    _save(tmp_path, 3, 12)
    folder = str(tmp_path)
    assert checkpoints.latest_checkpoint(folder) == str(tmp_path / "model.ckpt-12")
    assert checkpoints.require_checkpoint(folder) == str(tmp_path / "model.ckpt-12")
    assert checkpoints.global_step_of(folder) == 12
    assert checkpoints.variable_names(folder) == ["global_step", "layer/weights"]


@pytest.mark.parametrize("name", ["layer/weights", "layer/weights:0"])
def test_b278_a_variables_value(tmp_path, name):
    _save(tmp_path, 7)
    np.testing.assert_array_equal(checkpoints.variable_value(str(tmp_path), name), [7, 7])


def test_an_unknown_variable_is_refused_with_the_known_ones(tmp_path):
    _save(tmp_path, 7)
    with pytest.raises(ValueError, match=r"No variable 'bias' .* global_step, layer/weights"):
        checkpoints.variable_value(str(tmp_path), "bias")


def test_a_checkpoint_without_a_global_step_counts_from_zero(tmp_path):
    _save(tmp_path, 7, with_global_step=False)
    assert checkpoints.global_step_of(str(tmp_path)) == 0


@pytest.mark.parametrize("shape", [[2], None])
def test_b280_a_checkpoint_that_fits(tmp_path, shape):
    _save(tmp_path, 7)
    with fresh_graph():
        v1.get_variable(
            "layer/weights", initializer=tf.zeros([2]), validate_shape=shape is not None
        )
        v1.get_variable("new", [3])
        checkpoints.check_fits_graph(str(tmp_path / "model.ckpt-7"))


def test_b280_another_shape_is_refused_and_named(tmp_path):
    _save(tmp_path, 7)
    says = r"model.ckpt-7 failed: a mismatch .*'layer/weights': \[2\] in the checkpoint, \[2, 1\]"
    with fresh_graph():
        v1.get_variable("layer/weights", [2, 1])
        with pytest.raises(tf.errors.InvalidArgumentError, match=says):
            checkpoints.check_fits_graph(str(tmp_path / "model.ckpt-7"))
