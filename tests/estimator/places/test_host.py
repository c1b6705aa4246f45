import numpy as np
import pytest
import tensorflow as tf

from tests.estimator._engine.templates import make_template
from tfx_tpu_trainer.estimator._engine.loops.step_loop import build_template_loop
from tfx_tpu_trainer.estimator._engine.sessions.lifecycle import placed_by_need
from tfx_tpu_trainer.estimator._engine.template import HostFunction
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.places.host import place_on_host

v1 = tf.compat.v1

RATE = 0.1
TARGET = np.array([3.0, -1.0], np.float32)


def _descend(steps: int, *, start: np.ndarray) -> np.ndarray:
    """Plain gradient descent on the mean of (weights - TARGET)^2, by formula."""
    weights = start
    for _ in range(steps):
        weights = weights - RATE * 2 * (weights - TARGET) / weights.size
    return weights


def _train_op(reduction: str) -> tuple[tf.Variable, tf.Operation]:
    weights = v1.get_variable("weights", initializer=np.zeros(2, np.float32))
    loss = tf.reduce_mean(tf.square(weights - TARGET))
    optimizer = v1.tpu.CrossShardOptimizer(
        v1.train.GradientDescentOptimizer(RATE), reduction=reduction
    )
    return weights, optimizer.minimize(loss, v1.train.get_global_step())


def _run(fetches, *, hooks=(), steps: int = 1) -> list:
    config = placed_by_need(None)
    creator = v1.train.ChiefSessionCreator(config=config)
    with v1.train.MonitoredSession(session_creator=creator, hooks=hooks) as session:
        return [session.run(fetches) for _ in range(steps)]


@pytest.mark.parametrize("reduction", [v1.losses.Reduction.MEAN, v1.losses.Reduction.SUM])
@pytest.mark.behaviour(190)
def test_an_unmodified_cross_shard_optimizer_trains_as_on_one_shard(reduction):
    with fresh_graph() as graph:
        weights, train_op = _train_op(reduction)
        assert "CrossReplicaSum" in {op.type for op in graph.get_operations()}
        place_on_host(make_template("train", train_op=train_op))
        after = weights.read_value()
        with v1.Session(config=placed_by_need(None)) as session:
            session.run(v1.global_variables_initializer())
            for _ in range(3):
                session.run(train_op)
            trained, step = session.run([after, v1.train.get_global_step()])
    np.testing.assert_allclose(trained, _descend(3, start=np.zeros(2)), rtol=1e-6)
    assert step == 3


def _recorded(seen: list[int], value: tf.Tensor) -> tf.Tensor:
    return v1.py_func(lambda x: (seen.append(int(x)), np.float32(0))[1], [value], tf.float32)


_READS = {
    "op": lambda step: tf.identity(step),
    "conditional": lambda step: tf.cond(
        tf.constant(True), lambda: tf.identity(step), lambda: tf.identity(step) + 100
    ),
    "call": lambda step: tf.function(lambda: tf.identity(step))(),
}


@pytest.mark.parametrize("read", _READS)
@pytest.mark.behaviour(248)
def test_host_call_sees_the_step_before_each_step(read):
    seen: list[int] = []
    with fresh_graph():
        step = v1.train.get_global_step()
        train_op = step.assign_add(1, read_value=False)
        with tf.control_dependencies([train_op]):
            after = tf.identity(step)
        function = HostFunction(
            "host_call", lambda *values: [_recorded(seen, v) for v in values], [_READS[read](step)]
        )
        template = make_template("train", train_op=train_op, host_call=function)
        template, hooks = place_on_host(template)
        reached = _run(after, hooks=hooks, steps=300)
    assert seen == list(range(300))
    assert reached == list(range(1, 301))


@pytest.mark.parametrize("read", _READS)
@pytest.mark.behaviour(248)
def test_steps_ahead_see_the_step_before_each_step(read):
    seen: list[int] = []
    with fresh_graph():
        step = v1.train.get_global_step()
        added = step.assign_add(1, read_value=False)
        train_op = tf.group(added, _recorded(seen, _READS[read](step)))
        loop = build_template_loop(make_template("train", loss=tf.constant(1.0), train_op=train_op))
        with v1.Session(config=placed_by_need(None)) as session:
            session.run(v1.global_variables_initializer())
            assert loop.run(session, 1000) == (1.0, 1000)
    assert seen == list(range(1000))


def test_a_sum_over_cores_that_nothing_reads_is_its_addend():
    with fresh_graph():
        total = v1.tpu.cross_replica_sum(tf.constant([1.0, 2.0]))
        nested = {"total": total, "list": [total, tf.constant(5.0)]}
        template = make_template(
            "eval",
            loss=v1.tpu.cross_replica_sum(tf.constant(7.0)),
            predictions=nested,
            eval_metrics=HostFunction("eval_metrics", lambda t: {"m": v1.metrics.mean(t)}, [total]),
            host_call=HostFunction("host_call", lambda t: t * 2, {"t": total}),
            eval_metric_ops={"bare": (total, tf.no_op())},
        )
        placed, hooks = place_on_host(template)
        _, update = placed.eval_metrics()["m"]
        fetches = [placed.loss, placed.predictions, update, placed.eval_metric_ops["bare"][0]]
        ((loss, predictions, mean, bare),) = _run(fetches, hooks=hooks)
    assert loss == 7
    np.testing.assert_array_equal(predictions["total"], [1, 2])
    np.testing.assert_array_equal(predictions["list"][0], [1, 2])
    assert predictions["list"][1] == 5
    assert mean == 1.5
    np.testing.assert_array_equal(bare, [1, 2])


def test_sums_of_sums_are_bypassed():
    with fresh_graph():
        inner = v1.tpu.cross_replica_sum(tf.constant(2.0))
        outer = v1.tpu.cross_replica_sum(inner)
        template = make_template("infer", predictions={"y": outer, "z": outer + inner})
        placed, hooks = place_on_host(template)
        assert _run(placed.predictions, hooks=hooks) == [{"y": 2.0, "z": 4.0}]


def test_without_a_host_call_no_hook_is_needed():
    with fresh_graph():
        _, hooks = place_on_host(make_template("infer", predictions=tf.constant(1.0)))
        assert hooks == []
