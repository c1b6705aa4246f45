"""Training and optimizers on emulated cores: groups H and I of behaviours.md."""

from __future__ import annotations

import signal

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.estimator import linear_model
from tests.estimator.tpu import on_cores
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import tpu

v1 = tf.compat.v1

pytestmark = pytest.mark.matrix


@pytest.mark.parametrize(
    "hooks",
    [
        pytest.param([], id="in_loops"),
        pytest.param([on_cores.Steps()], marks=pytest.mark.sweep, id="step_by_step"),
    ],
)
@pytest.mark.behaviour(162)
def test_the_host_takes_any_number_of_steps(tmp_path, hooks):
    estimator = on_cores.linear(tmp_path, use_tpu=False)
    estimator.train(on_cores.train_input_fn, steps=2.5, hooks=hooks)
    assert estimator.get_variable_value("global_step") == 3
    estimator.train(on_cores.train_input_fn, max_steps=4.5, hooks=hooks)
    assert estimator.get_variable_value("global_step") == 5


@pytest.mark.behaviour(172)
def test_a_train_op_that_leaves_the_global_step_alone_never_ends(tmp_path):
    def model_fn(features, labels, mode, params):
        loss = tf.reduce_mean(tf.square(linear_model.outputs_of(features) - labels))
        optimizer = tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(linear_model.RATE))
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    class StopAfterFiveCalls(on_cores.Steps):
        def after_run(self, run_context, run_values):
            super().after_run(run_context, run_values)
            self.weights = run_context.session.run(v1.trainable_variables()[0])
            if len(self.seen) == 5:
                run_context.request_stop()

    hook = StopAfterFiveCalls()
    estimator = on_cores.make(tmp_path, model_fn, loop=1)
    estimator.train(on_cores.train_input_fn, steps=2, hooks=[hook])
    assert hook.seen == [0] * 5
    np.testing.assert_allclose(hook.weights, on_cores.descended(5)[1], rtol=1e-4)


class _Handlers(v1.train.SessionRunHook):
    """Keeps what would handle SIGINT in the middle of training."""

    def after_run(self, run_context, run_values):
        self.seen = signal.getsignal(signal.SIGINT)


@pytest.fixture
def default_sigint():
    """Handles SIGINT as Python does, which it doesn't in a shell's background jobs: they ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def _never_made(*args, **kwargs):
    pytest.fail("experimental_feed_hook is used")


@mostly_swept("cores_per_replica", [None, 2], kept=[2])
@pytest.mark.behaviour(178, 181, 182, 183)
def test_broadcast_trains_as_one_core_on_the_whole_batch(
    tmp_path, cores_per_replica, default_sigint
):
    options = {
        "per_host_input_for_training": on_cores.BROADCAST,
        "num_cores_per_replica": cores_per_replica,
        "experimental_feed_hook": _never_made,
    }
    hook = _Handlers()
    estimator = on_cores.linear(tmp_path, cores=4, loop=3, tpu_options=options)
    estimator.train(on_cores.train_input_fn, steps=4, hooks=[hook])
    on_cores.assert_descended(estimator, 4)
    # The original lets SIGINT kill the process while it trains on a TPU; here it ends the loop politely.
    assert hook.seen not in (signal.SIG_DFL, signal.SIG_IGN, default_sigint)
    assert signal.getsignal(signal.SIGINT) is default_sigint


@pytest.mark.behaviour(186)
def test_other_reductions_and_keras_optimizers_are_refused_at_once():
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    for reduction in ("mean", v1.losses.Reduction.NONE, None):
        with pytest.raises(ValueError, match="`reduction` should be one of"):
            tpu.CrossShardOptimizer(optimizer, reduction=reduction)
    for made in (tf_keras.optimizers.SGD(), keras.optimizers.SGD()):
        with pytest.raises(TypeError, match=r"Keras|Optimizer"):
            tpu.CrossShardOptimizer(made)


@pytest.mark.behaviour(188)
def test_slots_are_those_of_the_wrapped_optimizer(tmp_path):
    seen = []

    def model_fn(features, labels, mode, params):
        loss = tf.reduce_mean(tf.square(linear_model.outputs_of(features) - labels))
        wrapped = v1.train.AdamOptimizer(linear_model.RATE)
        optimizer = tpu.CrossShardOptimizer(wrapped)
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        (weights, _) = v1.trainable_variables()
        seen.append((optimizer.get_slot_names(), optimizer.get_slot(weights, "m").op.name))
        assert optimizer.get_slot(weights, "v") is wrapped.get_slot(weights, "v")
        assert optimizer.variables() == wrapped.variables()
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = on_cores.make(tmp_path, model_fn)
    estimator.train(on_cores.train_input_fn, steps=1)
    assert seen == [(["m", "v"], "linear/weights/Adam")]
    features, labels = linear_model.batches(on_cores.BATCH)[0]
    error = linear_model.output(features) - labels
    np.testing.assert_allclose(
        estimator.get_variable_value("linear/weights/Adam"),
        0.1 * 2 * features.T @ error / len(labels),
        rtol=1e-4,
    )
