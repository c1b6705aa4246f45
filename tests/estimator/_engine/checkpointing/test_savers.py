from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator._engine.saved_graphs import save
from tfx_tpu_trainer.estimator._engine.checkpointing.savers import fitted_scaffold, saver_of_objects
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

v1 = tf.compat.v1


@pytest.mark.parametrize("kind", [tf.train.Checkpoint, v1.train.Checkpoint])
def test_a_checkpoint_object_becomes_a_saver_of_its_objects(tmp_path, kind):
    with fresh_graph():
        weights = v1.get_variable("weights", initializer=np.float32([1, 2]))
        init_op = tf.no_op("mine")
        scaffold = v1.train.Scaffold(init_op=init_op, saver=kind(layer=weights))
        fitted = fitted_scaffold(scaffold, None, keep_max=1)
        with v1.Session() as session:
            session.run(weights.initializer)
            for step in (1, 2):
                path = fitted.saver.save(session, str(tmp_path / "model.ckpt"), global_step=step)
        assert fitted.init_op is init_op
    assert tf.train.get_checkpoint_state(str(tmp_path)).all_model_checkpoint_paths == [path]

    restored = tf.Variable([0.0, 0.0])
    tf.train.Checkpoint(layer=restored).restore(path).assert_nontrivial_match()
    np.testing.assert_array_equal(restored, [1, 2])


def test_another_scaffold_is_left_as_it_is(tmp_path):
    path = save(tmp_path, 7)
    with fresh_graph():
        weights = v1.get_variable("average", [2])
        for saver in (None, v1.train.Saver({"layer/weights": weights})):
            scaffold = v1.train.Scaffold(saver=saver)
            assert fitted_scaffold(scaffold, None) is scaffold
        assert fitted_scaffold(scaffold, path) is scaffold


@pytest.mark.behaviour(280)
def test_a_scaffolds_or_the_models_saver_decides_what_must_be_there(tmp_path):
    path = save(tmp_path, 7)
    with fresh_graph():
        weights = v1.get_variable("average", [2])
        with pytest.raises(tf.errors.NotFoundError, match="Missing in the checkpoint: 'average'"):
            fitted_scaffold(v1.train.Scaffold(), path)
        v1.add_to_collection(v1.GraphKeys.SAVERS, v1.train.Saver({"layer/weights": weights}))
        fitted_scaffold(v1.train.Scaffold(), path)


def test_a_saver_of_objects_restores_by_their_place(tmp_path):
    saved = tf.Variable([3.0, 4.0])
    path = tf.train.Checkpoint(layer=saved).save(str(tmp_path / "model.ckpt"))
    with fresh_graph(), v1.Session() as session:
        weights = v1.get_variable("whatever", [2])
        saver_of_objects(tf.train.Checkpoint(layer=weights)).restore(session, path)
        np.testing.assert_array_equal(session.run(weights), [3, 4])
