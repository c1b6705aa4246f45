"""A model that remembers the rows it has seen: how often each, and in which order.

As a program it trains: `python -m tests.estimator.counting_model FOLDER STEPS emulated|host`.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator import EstimatorSpec, tpu

v1 = tf.compat.v1

ROWS = 24
BATCH = 4


class Killed(Exception):  # noqa: N818
    """Ends a training as a kill does: no hook's `end` is called, so no checkpoint is written."""


class KillAt(v1.train.SessionRunHook):
    """Raises `Killed` after the session call that reaches a step."""

    def __init__(self, step: int):
        self._step = step

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_context.session.run(v1.train.get_global_step()) >= self._step:
            raise Killed


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    """Counts each row's ids in `counts`, by gradient; `mean` depends on their order."""
    del labels
    ids = tf.reshape(features["id"], [-1])
    counts = v1.get_variable("counts", [ROWS], initializer=v1.zeros_initializer())
    mean = v1.get_variable("mean", [], initializer=v1.zeros_initializer())
    loss = -tf.reduce_mean(tf.gather(counts, ids))
    order = tf.reduce_mean(tf.square(mean - tf.cast(ids, tf.float32)))
    counting = v1.train.GradientDescentOptimizer(float(BATCH))
    following = v1.train.AdamOptimizer(0.1)
    if params.get("use_tpu"):
        counting, following = map(tpu.CrossShardOptimizer, (counting, following))
    train_op = None
    if mode == "train":
        step = v1.train.get_global_step()
        train_op = tf.group(
            counting.minimize(loss, var_list=[counts]),
            following.minimize(order, step, var_list=[mean]),
        )
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def embedded_model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    """A model whose steps differ in their last bits where one is made by itself."""
    spec = model_fn(features, labels, mode, params)
    table = v1.get_variable("table", [ROWS, 4], initializer=v1.glorot_uniform_initializer(seed=1))
    weights = v1.get_variable("weights", [4, 3], initializer=v1.glorot_uniform_initializer(seed=1))
    outputs = tf.matmul(tf.nn.embedding_lookup(table, features["id"]), weights)
    loss = tf.reduce_mean(tf.square(outputs + 1.0) ** 1.5)
    train_op = v1.train.AdamOptimizer(0.01).minimize(loss, var_list=[table, weights])
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=tf.group(spec.train_op, train_op))


def noisy_model_fn(features: Any, labels: Any, mode: str, params: Any) -> EstimatorSpec:
    """The same for an Estimator, with a variable that remembers the random numbers drawn."""
    spec = model_fn(features, labels, mode, params)
    noise = tf.reduce_sum(tf.nn.dropout(tf.ones([40]), rate=0.4, seed=3))
    drawn = v1.get_variable("drawn", [], initializer=v1.zeros_initializer())
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    train_op = tf.group(spec.train_op, optimizer.minimize(drawn * noise, var_list=[drawn]))
    return EstimatorSpec(mode, loss=spec.loss, train_op=train_op)


def shuffled(params: dict[str, Any]) -> tf.data.Dataset:
    """The rows without end, each once in an epoch, in another order each time."""
    rows = tf.data.Dataset.range(ROWS).shuffle(ROWS // 2, seed=5).repeat()
    return with_batches(rows, params)


def with_batches(rows: tf.data.Dataset, params: dict[str, Any]) -> tf.data.Dataset:
    """Batches of ids, read ahead."""
    batches = rows.map(lambda row: {"id": row}, num_parallel_calls=2)
    return batches.batch(params["batch_size"], drop_remainder=True).prefetch(3)


def estimator(folder: Any, *, model: Callable[..., Any] = model_fn, **options: Any) -> Any:
    """Returns a TPUEstimator of the model; `config` are arguments of RunConfig."""
    config = {
        "save_input_position": True,
        "save_checkpoints_steps": 10,
        **options.pop("config", {}),
    }
    tpu_config = config.pop("tpu_config", tpu.TPUConfig(iterations_per_loop=1))
    config = tpu.RunConfig(
        model_dir=str(folder), tpu_config=tpu_config, save_summary_steps=None, **config
    )
    return tpu.TPUEstimator(
        model,
        config=config,
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        **{"use_tpu": False, **options},
    )


def values(trained: Any) -> dict[str, np.ndarray]:
    """Returns the values of all variables in the latest checkpoint."""
    return {name: trained.get_variable_value(name) for name in trained.get_variable_names()}


def assert_equal(trained: Any, expected: Any) -> None:
    """Asserts that the variables of two estimators are equal to the last bit."""
    got, wanted = values(trained), values(expected)
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


def main(folder: str, steps: str, place: str) -> None:
    """Trains to a step."""
    options = {"config": {"save_checkpoints_steps": 20, "tf_random_seed": 2}}
    if place == "emulated":
        options["use_tpu"] = True
        options["config"] |= {
            "master": "emulated",
            "tpu_config": tpu.TPUConfig(num_shards=2, iterations_per_loop=5),
        }
    estimator(folder, **options).train(shuffled, max_steps=int(steps))


if __name__ == "__main__":
    main(*sys.argv[1:])


class SeesEveryStep(v1.train.SessionRunHook):
    """Keeps steps out of loops, as it may look at each."""

    def before_run(self, run_context):
        """May look at the step."""
