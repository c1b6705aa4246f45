from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator._engine.templates import batches_of, make_template, settings_in
from tfx_tpu_trainer.estimator._engine.predicting.prediction import PredictionPlan, predict_batches
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

v1 = tf.compat.v1


class _SessionWatcher(v1.train.SessionRunHook):
    """Knows the session that it ran in."""

    def after_create_session(self, session, coord):
        del coord
        self.session = session


def _is_closed(session: v1.Session) -> bool:
    try:
        session.run([])
    except RuntimeError as error:
        return "closed Session" in str(error)
    return False


def _doubles(folder, values, batch_size: int, *, hooks=(), own_hooks=(), checkpoint=None):
    """A generator of the doubles of `values`, and of a weight that starts at 1."""
    with fresh_graph():
        inputs = batches_of(values, batch_size)
        weight = v1.get_variable("weight", initializer=1.0)
        predictions = {"doubled": inputs.features * 2, "weight": weight.read_value()}
        template = make_template("infer", predictions=predictions, hooks=tuple(own_hooks))
    return predict_batches(
        PredictionPlan(template, predictions),
        settings=settings_in(folder),
        hooks=[*inputs.hooks, *hooks],
        checkpoint_path=checkpoint,
    )


@pytest.mark.behaviour(221)
def test_batches_come_in_order_and_the_last_is_short(tmp_path):
    batches = [batch["doubled"].tolist() for batch in _doubles(tmp_path, [1, 2, 3, 4, 5], 2)]
    assert batches == [[2, 4], [6, 8], [10]]


@pytest.mark.behaviour(220)
def test_nothing_runs_before_the_generator_is_advanced(tmp_path):
    watcher = _SessionWatcher()
    batches = _doubles(tmp_path, [1], 1, hooks=[watcher])
    assert not hasattr(watcher, "session")
    next(batches)
    assert hasattr(watcher, "session")


@pytest.mark.behaviour(380)
def test_an_op_without_a_kernel_in_the_first_batch_is_the_error_that_comes_out(tmp_path):
    with fresh_graph():
        inputs = batches_of([1, 2], 1)
        predictions = tf.cast(tf.strings.as_string(inputs.features), tf.float32)
        template = make_template("infer", predictions=predictions)
    batches = predict_batches(
        PredictionPlan(template, predictions),
        settings=settings_in(tmp_path),
        hooks=inputs.hooks,
        checkpoint_path=None,
    )
    with pytest.raises(tf.errors.UnimplementedError, match="Cast string to float"):
        next(batches)


def test_closing_the_generator_closes_and_frees_its_session(tmp_path):
    watcher = _SessionWatcher()
    batches = _doubles(tmp_path, [1, 2, 3], 1, hooks=[watcher])
    next(batches)
    session = watcher.session
    assert not _is_closed(session)
    batches.close()
    assert _is_closed(session)
    session = weakref.ref(session)
    del watcher.session, batches
    gc.collect()
    assert session() is None


def test_breaking_out_of_a_loop_closes_the_session(tmp_path):
    watcher = _SessionWatcher()
    for _ in _doubles(tmp_path, [1, 2, 3], 1, hooks=[watcher]):
        break
    gc.collect()
    assert _is_closed(watcher.session)


def test_generators_may_be_interleaved(tmp_path):
    outside = v1.get_default_graph()
    one, other = _doubles(tmp_path, [1, 2, 3], 1), _doubles(tmp_path, [10, 20, 30], 1)
    seen = []
    for first, second in zip(one, other):
        assert v1.get_default_graph() is outside
        seen.append((float(first["doubled"][0]), float(second["doubled"][0])))
    assert seen == [(2, 20), (4, 40), (6, 60)]


@pytest.mark.behaviour(234)
def test_a_checkpoint_is_restored(tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        variables = {
            "weight": v1.get_variable("weight", initializer=5.0),
            "global_step": v1.get_variable("global_step", initializer=np.int64(3)),
        }
        session.run(v1.global_variables_initializer())
        path = v1.train.Saver(variables).save(session, str(tmp_path / "model.ckpt"))
    (restored,) = _doubles(tmp_path, [1], 1, checkpoint=path)
    (initial,) = _doubles(tmp_path, [1], 1)
    assert restored["weight"] == 5
    assert initial["weight"] == 1


@pytest.mark.behaviour(258)
def test_the_templates_own_hooks_run(tmp_path):
    watcher = _SessionWatcher()
    list(_doubles(tmp_path, [1], 1, own_hooks=[watcher]))
    assert watcher.session is not None
