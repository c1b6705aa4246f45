import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator._engine import fake_tpu
from tests.estimator._engine.templates import make_template
from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.sessions.lifecycle import placed_by_need
from tfx_tpu_trainer.estimator._engine.template import HostFunction
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.places.host import place_on_host
from tfx_tpu_trainer.estimator.places.strategy.feed import StrategyFeed
from tfx_tpu_trainer.estimator.places.strategy.plan import (
    StrategyPlacement,
    place_prediction_under_strategy,
    place_training_under_strategy,
)

v1 = tf.compat.v1

pytestmark = pytest.mark.matrix

ROWS, VOCABULARY, STEPS = 64, 20, 3
GLOBAL_BATCH = 16

_random = np.random.RandomState(0)
DATA = {
    "x": _random.randn(ROWS, 5).astype(np.float32),
    "word": _random.randint(0, VOCABULARY, ROWS),
}
LABELS = (DATA["x"].sum(axis=1) > 0).astype(np.int64)

Optimizer = Callable[[], v1.train.Optimizer]


def strategy_of(replicas: int) -> tf.distribute.Strategy:
    return tf.distribute.MirroredStrategy(
        [f"/cpu:{index}" for index in range(replicas)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


def _weights(name: str, shape: list[int]) -> tf.Variable:
    # A seed from the name: the same first values in every graph.
    seed = sum(map(ord, name))
    return v1.get_variable(name, shape, initializer=v1.glorot_uniform_initializer(seed=seed))


def plain_logits(features: dict[str, tf.Tensor]) -> tf.Tensor:
    word = tf.gather(_weights("embedding", [VOCABULARY, 4]), features["word"])
    return tf.concat([features["x"], word], axis=1) @ _weights("out", [9, 2])


def looping_logits(features: dict[str, tf.Tensor]) -> tf.Tensor:
    kernel = _weights("kernel", [5, 5])
    hidden = tf.while_loop(
        lambda i, h: i < 3, lambda i, h: (i + 1, tf.tanh(h @ kernel)), [0, features["x"]]
    )[1]
    return hidden @ _weights("out", [5, 2])


def normalized_logits(features: dict[str, tf.Tensor]) -> tf.Tensor:
    """A batch norm over all replicas: its variance is a sum that needs its mean, a sum too."""
    hidden = features["x"] @ _weights("kernel", [5, 4])
    mean = _mean_over_replicas(tf.reduce_mean(hidden, axis=0))
    variance = _mean_over_replicas(tf.reduce_mean(tf.square(hidden - mean), axis=0))
    return (hidden - mean) * tf.math.rsqrt(variance + 1e-3) @ _weights("out", [4, 2])


_shards = 1


def _mean_over_replicas(tensor: tf.Tensor) -> tf.Tensor:
    return _sum_with_gradient(tensor) / _shards


@tf.custom_gradient
def _sum_with_gradient(tensor: tf.Tensor) -> Any:
    def gradient(dy: tf.Tensor) -> tf.Tensor:
        return v1.tpu.cross_replica_sum(dy)

    return v1.tpu.cross_replica_sum(tensor), gradient


def trace(
    features: Any,
    labels: Any,
    *,
    shards: int,
    logits_fn: Callable[[Any], tf.Tensor] = plain_logits,
    optimizer: Optimizer = lambda: v1.train.GradientDescentOptimizer(0.1),
    **fields: Any,
) -> Any:
    global _shards
    _shards = shards
    with tf_private.replicas(shards):
        logits = logits_fn(features)
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        )
        wrapped = v1.tpu.CrossShardOptimizer(optimizer())
        train_op = wrapped.minimize(loss, v1.train.get_global_step())
    return make_template(
        "train", features=features, labels=labels, loss=loss, train_op=train_op, **fields
    )


def dataset(batch: int, *, repeat: bool = True) -> tf.data.Dataset:
    rows = tf.data.Dataset.from_tensor_slices((DATA, LABELS))
    rows = rows.repeat() if repeat else rows
    return rows.batch(batch, drop_remainder=repeat)


def train_on_one_device(**model: Any) -> tuple[list[float], dict[str, np.ndarray]]:
    """The expected numbers: the same model in a plain session, on the global batch."""
    with fresh_graph():
        features, labels = v1.data.make_one_shot_iterator(dataset(GLOBAL_BATCH)).get_next()
        template, _ = place_on_host(trace(features, labels, shards=1, **model))
        with v1.Session(config=placed_by_need(None)) as session:
            session.run(v1.global_variables_initializer())
            losses = [session.run([template.loss, template.train_op])[0] for _ in range(STEPS)]
            return losses, session.run({v.op.name: v for v in v1.global_variables()})


@contextlib.contextmanager
def training(replicas: int, *, iterations: int | None = None, **model: Any):
    """Opens a graph with a placed training; yields the placement and its feed."""
    feed = StrategyFeed(
        strategy_of(replicas), lambda context: dataset(GLOBAL_BATCH // replicas), repeated=True
    )
    with fresh_graph():
        features, labels = feed.make_placeholders()
        template = trace(features, labels, shards=replicas, **model)
        count = None
        if iterations is not None:
            count = v1.get_variable(
                "iterations_per_loop",
                initializer=iterations,
                trainable=False,
                collections=[v1.GraphKeys.LOCAL_VARIABLES],
            )
        yield place_training_under_strategy(template, feed, iterations=count)


def open_session(
    placement: StrategyPlacement, hooks: Any = (), **options: Any
) -> v1.train.MonitoredSession:
    scaffold = placement.template.make_scaffold()
    creator = placement.session_creator(scaffold=scaffold, **options)
    return v1.train.MonitoredSession(creator, [*hooks, *placement.hooks])


def assert_close(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert set(actual) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=2e-6, atol=2e-6, err_msg=name)


MODELS = {
    "sgd": {},
    "momentum": {"optimizer": lambda: v1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True)},
    "adam": {"optimizer": lambda: v1.train.AdamOptimizer(0.01)},
    "loop": {"logits_fn": looping_logits, "optimizer": lambda: v1.train.AdamOptimizer(0.01)},
    "batch_norm": {"logits_fn": normalized_logits},
}


_MORE_RUNS = [
    *((model, 1) for model in ("sgd", "adam")),
    *((model, 2) for model in ("sgd", "momentum", "batch_norm")),
    *((model, 4) for model in ("sgd", "momentum", "adam", "loop")),
]


@pytest.mark.parametrize(
    ("model", "replicas"),
    [
        ("adam", 2),
        ("loop", 2),
        ("batch_norm", 4),
        *(pytest.param(model, n, marks=pytest.mark.sweep) for model, n in _MORE_RUNS),
    ],
)
@pytest.mark.behaviour(177)
def test_replicas_train_to_the_numbers_of_one_device(model, replicas):
    losses, expected = train_on_one_device(**MODELS[model])
    with training(replicas, **MODELS[model]) as placement:
        variables = {v.op.name: v for v in v1.global_variables()}
        with open_session(placement) as session:
            actual_losses = [session.run(placement.template.loss) for _ in range(STEPS)]
            actual = session.run(variables)
    np.testing.assert_allclose(actual_losses, losses, rtol=2e-6)
    assert_close(actual, expected)


def test_a_hook_that_looks_into_a_step_is_refused_by_name():
    class Peeper(v1.train.SessionRunHook):
        def before_run(self, run_context):
            return v1.train.SessionRunArgs(inside)

    with training(2) as placement:
        inside = placement.template.features["x"] * 2
        with (
            pytest.raises(RuntimeError, match=r"Peeper fetches 'mul.*tf.distribute strategy"),
            open_session(placement, [Peeper()]) as session,
        ):
            session.run(placement.template.loss)


@pytest.mark.behaviour(241)
def test_the_host_call_runs_once_for_each_step():
    feed = StrategyFeed(strategy_of(2), lambda context: dataset(GLOBAL_BATCH // 2), repeated=True)
    with fresh_graph():
        template = trace(*feed.make_placeholders(), shards=2)
        calls = v1.get_variable("calls", initializer=[0.0] * 3, trainable=False)
        step = v1.train.get_global_step()

        def host_call(step, rows):
            return calls.assign_add([1.0, tf.cast(step[0], tf.float32), tf.reduce_sum(rows)])

        tensors = {"step": tf.reshape(step, [1]), "rows": template.labels * 0 + 1}
        tensors["rows"] = tf.cast(tensors["rows"], tf.float32)
        placement = place_training_under_strategy(
            make_template(
                "train",
                loss=template.loss,
                train_op=template.train_op,
                host_call=HostFunction("host_call", host_call, tensors),
            ),
            feed,
            iterations=v1.get_variable("iterations", initializer=4, trainable=False),
            host_call_every_n_steps=2,
        )
        with open_session(placement) as session:
            session.run(placement.template.loss)
            number, steps, rows = session.run(calls)
    assert (number, rows) == (2, 2 * GLOBAL_BATCH)
    assert steps == 0 + 2


def test_tables_are_refused():
    feed = StrategyFeed(strategy_of(1), lambda context: tf.data.Dataset.range(4), repeated=False)
    with fresh_graph():
        features, _ = feed.make_placeholders()
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(tf.constant([1], tf.int64), tf.constant([2])), 0
        )
        predictions = table.lookup(tf.reshape(features, [1]))
        with pytest.raises(ValueError, match=r"HashTableV2.*Look tables up in input_fn"):
            place_prediction_under_strategy(
                make_template("infer", features=features), predictions, feed
            )


def test_a_sum_in_the_body_of_a_loop_is_refused():
    with (
        pytest.raises(ValueError, match="must be at the top level"),
        training(2, logits_fn=_logits_that_sum_in_a_loop),
    ):
        pass


def _logits_that_sum_in_a_loop(features: dict[str, tf.Tensor]) -> tf.Tensor:
    hidden = features["x"] @ _weights("kernel", [5, 2])
    return tf.while_loop(
        lambda i, h: i < 2,
        lambda i, h: (i + 1, tf.stop_gradient(v1.tpu.cross_replica_sum(h))),
        [0, hidden],
    )[1]


def test_the_steps_of_a_tpu_strategy_are_one_program_of_all_replicas():
    feed = StrategyFeed(
        fake_tpu.strategy_of(2), lambda context: dataset(GLOBAL_BATCH // 2), repeated=True
    )
    with fresh_graph():
        features, labels = feed.make_placeholders()
        template = trace(features, labels, shards=2, optimizer=lambda: v1.train.AdamOptimizer(0.1))
        placed = place_training_under_strategy(template, feed)
        graph = fake_tpu.traced_steps(placed.session_creator(scaffold=v1.train.Scaffold()))
    (metadata,) = (node for node in fake_tpu.nodes_of(graph) if node.op == "TPUReplicateMetadata")
    assert metadata.attr["num_replicas"].i == 2
    on_tpu, on_host = fake_tpu.split_by_place(graph)
    # A sum and an update for each variable; the input and the loop are the host's.
    assert on_tpu["CrossReplicaSum"] == on_tpu["ResourceApplyAdam"] == 2
    assert on_tpu["MatMul"] and not on_host["MatMul"]
    assert on_host["IteratorGetNext"] == 2 and on_host["While"] == 1
