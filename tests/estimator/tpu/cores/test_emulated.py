from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator._engine.templates import make_template
from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import as_input_tensors
from tfx_tpu_trainer.estimator._engine.sessions.lifecycle import placed_by_need
from tfx_tpu_trainer.estimator._engine.template import HostFunction
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.tpu.cores.emulated import place_training_on_cores
from tfx_tpu_trainer.estimator.tpu.cores.feed import CoreFeed
from tfx_tpu_trainer.estimator.tpu.cores.layout import CoreLayout, InputMode, row_slices

v1 = tf.compat.v1

ROWS = np.arange(1, 9, dtype=np.float32)


def _train(cores: int, *, steps: int = 3, every: int = 1) -> dict[str, float]:
    """Gradient descent of a weight towards the mean of the batch, on cores."""
    with fresh_graph():
        dataset = tf.data.Dataset.from_tensor_slices(ROWS).repeat().batch(8, drop_remainder=True)
        source = as_input_tensors(dataset)
        slices = row_slices(InputMode.PER_HOST_V1, CoreLayout(cores))
        feed = CoreFeed([source], slices, batch_axes=None)
        calls = v1.get_variable("calls", initializer=0.0, trainable=False)
        weight = v1.get_variable("weight", initializer=0.0)
        with tf_private.replicas(cores):
            loss = tf.reduce_mean(tf.square(weight - feed.features))
            optimizer = v1.tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
            train_op = optimizer.minimize(loss, v1.train.get_global_step())
        host_call = HostFunction(
            "host_call", lambda loss: calls.assign_add(tf.reduce_sum(loss) * 0 + 1), [loss[None]]
        )
        loop = place_training_on_cores(
            make_template("train", loss=loss, train_op=train_op, host_call=host_call),
            feed,
            cores=cores,
            broadcast=False,
            host_call_every_n_steps=every,
        )
        assign = loop.iterations.assign(steps, read_value=False)
        after = {
            "weight": weight.read_value(),
            "calls": calls.read_value(),
            "step": v1.train.get_global_step().read_value(),
        }
        creator = v1.train.ChiefSessionCreator(config=placed_by_need(None))
        with v1.train.MonitoredSession(creator, hooks=source.hooks) as session:
            session.run(assign)
            return {"loss": session.run(loop.loss), **session.run(after)}


@pytest.mark.parametrize("cores", [1, 2, 4, 8])
@pytest.mark.behaviour(177)
def test_a_loop_on_cores_is_gradient_descent_on_the_whole_batch(cores):
    weight = 0.0
    for _ in range(3):
        loss = np.mean((weight - ROWS) ** 2)
        weight -= 0.1 * 2 * (weight - ROWS.mean())
    assert _train(cores) == pytest.approx(
        {"loss": loss, "weight": weight, "calls": 3, "step": 3}, rel=1e-5
    )


@pytest.mark.behaviour(244)
def test_the_host_call_runs_every_n_steps_of_a_loop():
    assert _train(2, steps=5, every=2)["calls"] == 3
