import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.estimator._engine.saved_graphs import save
from tfx_tpu_trainer.estimator._engine.checkpointing.restored_variables import (
    check_fits_graph,
    find_misfit,
    restored_by_default,
)
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

v1 = tf.compat.v1


@pytest.mark.parametrize("shape", [[2], None])
@pytest.mark.behaviour(280)
def test_a_checkpoint_that_fits(tmp_path, shape):
    path = save(tmp_path, 7)
    with fresh_graph():
        v1.get_variable(
            "layer/weights", initializer=tf.zeros([2]), validate_shape=shape is not None
        )
        check_fits_graph(path)


def test_a_checkpoint_may_have_more_than_the_graph(tmp_path):
    path = save(tmp_path, 7)
    with fresh_graph():
        check_fits_graph(path)


@pytest.mark.behaviour(280)
def test_another_shape_is_refused_and_both_shapes_are_named(tmp_path):
    path = save(tmp_path, 7)
    says = (
        r"model.ckpt-7 failed: a mismatch .*'layer/weights': float32 \[2\] in the checkpoint, "
        r"float32 \[2, 1\] in the graph.*Use another model_dir"
    )
    with fresh_graph():
        v1.get_variable("layer/weights", [2, 1])
        with pytest.raises(tf.errors.InvalidArgumentError, match=says) as raised:
            check_fits_graph(path)
    assert "Missing" not in str(raised.value)


@pytest.mark.behaviour(280)
@row(
    "checkpoints",
    "a variable of another type than the checkpoint's",
    "float64 [2] in the graph",
    "Use another model_dir, or warm-start from this checkpoint",
)
def test_another_type_is_refused(tmp_path, refused):
    path = save(tmp_path, 7)
    with fresh_graph():
        v1.get_variable("layer/weights", [2], tf.float64)
        with refused(tf.errors.InvalidArgumentError):
            check_fits_graph(path)


@row("checkpoints", "a checkpoint that lacks 52 variables", "'new49' float32 [] and 2 more. In")
def test_a_long_list_is_cut(tmp_path, refused):
    path = save(tmp_path, 7)
    with fresh_graph():
        for number in range(52):
            v1.get_variable(f"new{number:02d}", [])
        with refused(tf.errors.NotFoundError):
            check_fits_graph(path)


def test_a_savers_own_names_are_looked_up(tmp_path):
    path = save(tmp_path, 7)
    with fresh_graph():
        weights = v1.get_variable("other", [2])
        check_fits_graph(path, v1.train.Saver({"layer/weights": weights}))
        with pytest.raises(tf.errors.NotFoundError, match="Missing in the checkpoint: 'average'"):
            check_fits_graph(path, v1.train.Saver({"average": weights}))
        with pytest.raises(tf.errors.NotFoundError, match="Missing in the checkpoint: 'other'"):
            check_fits_graph(path, v1.train.Saver(defer_build=True))


def test_a_variable_in_parts_is_looked_up_as_a_whole(tmp_path):
    with fresh_graph():
        v1.get_variable("table", [4], partitioner=v1.fixed_size_partitioner(2))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            path = v1.train.Saver().save(session, str(tmp_path / "model.ckpt"))
        check_fits_graph(path)
        check_fits_graph(path, v1.train.Saver())


def _save_objects(folder) -> str:
    weights = tf.Variable(np.float32([1, 2]), name="layer/weights")
    step = tf.Variable(3, dtype=tf.int64, name="global_step")
    return tf.train.Checkpoint(step=step, weights=weights).save(str(folder / "model.ckpt"))


def test_names_are_looked_up_in_an_object_based_checkpoint_as_tensorflow_does(tmp_path):
    path = _save_objects(tmp_path)
    with fresh_graph():
        v1.get_variable("layer/weights", [2])
        assert find_misfit(path, restored_by_default()) is None
        with v1.Session() as session:
            v1.train.Saver().restore(session, path)
            assert session.run(v1.train.get_global_step()) == 3
        v1.get_variable("new", [2])
        misfit = find_misfit(path, restored_by_default())
    assert str(misfit).startswith("Missing in the checkpoint: 'new' float32 [2]. In ")


def test_a_session_does_not_look_names_up_in_an_object_based_checkpoint(tmp_path):
    path = _save_objects(tmp_path)
    says = r"object-based.* Give its Scaffold saver=tf.train.Checkpoint"
    with fresh_graph(), pytest.raises(ValueError, match=says):
        check_fits_graph(path)
