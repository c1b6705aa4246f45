"""Training on N emulated cores equals training on one, on the same global batch."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla

from tests.estimator import linear_model
from tests.estimator.tpu import on_cores
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import tpu

v1 = tf.compat.v1


pytestmark = pytest.mark.matrix


ROWS, WIDTH, WORDS = 24, 4, 7


STEPS = 5


OPTIMIZERS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
    "adam": lambda: v1.train.AdamOptimizer(0.05),
    "rmsprop": lambda: v1.train.RMSPropOptimizer(0.02, momentum=0.5),
    "ftrl": lambda: v1.train.FtrlOptimizer(0.1, l1_regularization_strength=0.001),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
}


def _input_fn(params):
    random = np.random.RandomState(3)
    features = {
        "x": random.uniform(-1, 1, (ROWS, WIDTH)).astype(np.float32),
        "word": random.randint(0, WORDS, (ROWS, 2)),
    }
    labels = np.sin(features["x"].sum(axis=1, keepdims=True) + features["word"][:, :1])
    dataset = tf.data.Dataset.from_tensor_slices((features, labels.astype(np.float32)))
    return dataset.repeat().batch(params["batch_size"], drop_remainder=True)


def _normal(seed: int) -> Any:
    return v1.random_normal_initializer(stddev=0.5, seed=seed)


def _network(features: dict[str, tf.Tensor]) -> tf.Tensor:
    """An embedding, a loop and a branch, each with trained variables on the way."""
    table = v1.get_variable("embedding", [WORDS, WIDTH], initializer=_normal(1))
    looped = v1.get_variable("looped", [WIDTH, WIDTH], initializer=_normal(2))
    branched = v1.get_variable("branched", [WIDTH], initializer=_normal(3))
    out = v1.get_variable("out", [WIDTH, 1], initializer=_normal(4))
    hidden = features["x"] + tf.reduce_mean(tf.nn.embedding_lookup(table, features["word"]), axis=1)

    def body(i, value):
        return i + 1, tf.tanh(tf.matmul(value, looped))

    hidden = tf.while_loop(lambda i, value: i < 3, body, (0, hidden))[1]
    even = tf.equal(v1.train.get_global_step() % 2, 0)
    hidden = tf.cond(even, lambda: hidden * branched, lambda: hidden + branched)
    return tf.matmul(hidden, out)


def _model_fn(features, labels, mode, params):
    loss = tf.reduce_mean(tf.square(_network(features) - labels))
    optimizer = v1.tpu.CrossShardOptimizer(OPTIMIZERS[params["optimizer"]]())
    train_op = optimizer.minimize(loss, v1.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def _trained(folder, optimizer: str, number: int, *, steps: int = STEPS) -> dict[str, np.ndarray]:
    estimator = on_cores.make(
        folder, _model_fn, cores=number, loop=2, params={"optimizer": optimizer}
    )
    estimator.train(_input_fn, steps=steps)
    names = estimator.get_variable_names()
    return dict(zip(names, estimator.get_variable_value(names)))


def _assert_equal_cores(folder, optimizer: str, numbers: tuple[int, ...], **options: Any) -> None:
    one = _trained(folder / "1", optimizer, 1, **options)
    assert {"embedding", "looped", "branched", "out", "global_step"} <= set(one)
    for number in numbers:
        several = _trained(folder / str(number), optimizer, number, **options)
        assert set(several) == set(one)
        for name, value in one.items():
            np.testing.assert_allclose(
                several[name], value, atol=1e-6, rtol=0, err_msg=f"{name} on {number} cores"
            )


# The next test has the other optimizers and numbers of cores.
@pytest.mark.behaviour(177, 184)
def test_every_variable_and_slot_is_that_of_one_core(tmp_path):
    _assert_equal_cores(tmp_path, "adam", (4,))


@pytest.mark.sweep
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
@pytest.mark.behaviour(177, 184)
def test_every_optimizer_on_2_4_and_8_cores(tmp_path, optimizer):
    _assert_equal_cores(tmp_path, optimizer, (2, 4, 8), steps=21)


@mostly_swept("number", [2, 4], kept=[4])
def test_dropout_differs_between_cores_and_repeats(tmp_path, number):
    seen = []

    def model_fn(features, labels, mode, params):
        weights = v1.get_variable("weights", initializer=1.0)
        kept = tf.nn.dropout(tf.ones([params["batch_size"], 64]), rate=0.5, seed=11)
        loss = weights * tf.reduce_mean(kept)
        optimizer = v1.tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.0))
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        host_call = (on_cores.recorder(seen, 0), [kept])
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op, host_call=host_call)

    runs = []
    for name in ("first", "second"):
        seen.clear()
        estimator = on_cores.make(tmp_path / name, model_fn, cores=number, tf_random_seed=3)
        estimator.train(_input_fn, steps=2)
        runs.append([masks.reshape([number, -1]) for (masks,) in seen])
    for step, again in zip(*runs):
        np.testing.assert_array_equal(step, again)
        assert len({mask.tobytes() for mask in step}) == number
    assert not np.array_equal(runs[0][0], runs[0][1])


def test_moving_averages_of_batch_norm_are_the_first_cores(tmp_path):
    def model_fn(features, labels, mode, params):
        normal = v1.layers.batch_normalization(features["x"], training=True, momentum=0.5)
        loss = tf.reduce_mean(normal) + v1.get_variable("weight", initializer=1.0)
        optimizer = v1.tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.0))
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = on_cores.make(tmp_path, model_fn, cores=4)
    estimator.train(_input_fn, steps=1)
    random = np.random.RandomState(3).uniform(-1, 1, (ROWS, WIDTH)).astype(np.float32)
    np.testing.assert_allclose(
        estimator.get_variable_value("batch_normalization/moving_mean"),
        0.5 * random[:2].mean(axis=0),
        rtol=1e-5,
    )


_V1_PROGRAM = """
import sys
import numpy as np
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
from tfx_tpu_trainer.estimator import tpu

def input_fn(params):
    x = np.random.RandomState(0).uniform(-1, 1, (24, 4)).astype("f")
    data = tf.data.Dataset.from_tensor_slices(({"x": x}, np.sin(x.sum(1, keepdims=True))))
    return data.repeat(params.get("epochs")).batch(
        params["batch_size"], drop_remainder="epochs" not in params)

def metric_fn(labels, y):
    return {"mae": tf.metrics.mean_absolute_error(labels, y)}

def model_fn(features, labels, mode, params):
    w = tf.get_variable("w", [4, 4], initializer=tf.random_normal_initializer(seed=1))
    h = tf.while_loop(lambda i, h: i < 2, lambda i, h: (i + 1, tf.tanh(tf.matmul(h, w))),
                      (0, features["x"]))[1]
    h = tf.cond(tf.equal(tf.train.get_global_step() % 2, 0), lambda: h * 2, lambda: h)
    y = tf.layers.dense(h, 1, kernel_initializer=tf.random_normal_initializer(seed=2))
    loss = tf.reduce_mean(tf.square(y - labels))
    optimizer = tpu.CrossShardOptimizer(tf.train.AdamOptimizer(0.05))
    return tpu.TPUEstimatorSpec(
        mode, loss=loss, train_op=optimizer.minimize(loss, tf.train.get_global_step()),
        eval_metrics=(metric_fn, [labels, y]))

results = []
for cores in map(int, sys.argv[2:]):
    config = tpu.RunConfig(
        model_dir=f"{sys.argv[1]}/{cores}", master="emulated",
        tpu_config=tpu.TPUConfig(num_shards=cores, iterations_per_loop=3))
    make = lambda params: tpu.TPUEstimator(
        model_fn, config=config, params=params, train_batch_size=8, eval_batch_size=16)
    make({}).train(input_fn, steps=7)
    trained = make({"epochs": 1})
    metrics = trained.evaluate(input_fn)
    names = trained.get_variable_names()
    values = trained.get_variable_value(names)
    results.append({**dict(zip(names, values)), **metrics})
assert not tf.control_flow_v2_enabled()
for result in results[1:]:
    assert set(result) == set(results[0])
    for name, value in results[0].items():
        np.testing.assert_allclose(result[name], value, atol=1e-6, rtol=0, err_msg=name)
print("equal:", sorted(results[0]))
"""


@mostly_swept("numbers", [("1", "2"), ("1", "2", "4")], kept=[("1", "2")])
def test_programs_in_v1_mode_train_equally_on_any_number_of_cores(tmp_path, numbers):
    ended = subprocess.run(
        [sys.executable, "-c", _V1_PROGRAM, str(tmp_path), *numbers],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "dense/kernel/Adam_1" in ended.stdout


def _accumulating_model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    """Gradients are added up, and an optimizer is applied in every second step."""
    outputs = linear_model.outputs_of(features)
    loss = tf.reduce_mean(tf.square(outputs - labels))
    variables = v1.trainable_variables()
    sums = [v1.get_variable(f"sum_{v.op.name}", initializer=tf.zeros_like(v)) for v in variables]
    optimizer = v1.tpu.CrossShardOptimizer(v1.train.MomentumOptimizer(0.1, 0.9))
    share = 1.0 / params["context"].num_replicas
    # The optimizer scales the loss by each core's share, and adds up what it is given to apply.
    means = [v1.tpu.cross_replica_sum(g) for g, _ in optimizer.compute_gradients(loss, variables)]
    added = [total.assign_add(g, read_value=False) for total, g in zip(sums, means)]
    step = v1.train.get_global_step()

    def apply() -> tf.Tensor:
        halves = [(total.read_value() * share / 2, v) for total, v in zip(sums, variables)]
        with tf.control_dependencies([optimizer.apply_gradients(halves)]):
            cleared = [total.assign(tf.zeros_like(total), read_value=False) for total in sums]
        with tf.control_dependencies(cleared):
            return tf.constant(True)

    with tf.control_dependencies(added):
        due = tf.equal(step.read_value() % 2, 1)
        applied = tf.cond(due, apply, lambda: tf.constant(False))
    with tf.control_dependencies([applied]):
        train_op = step.assign_add(1, read_value=False)
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


@mostly_swept("numbers", [(1, 2), (1, 2, 4)], kept=[(1, 2)])
def test_accumulated_gradients_train_equally_on_any_number_of_cores(tmp_path, numbers):
    values = []
    for number in numbers:
        estimator = on_cores.make(tmp_path / str(number), _accumulating_model_fn, cores=number)
        estimator.train(on_cores.train_input_fn, steps=6)
        values.append([estimator.get_variable_value(n) for n in estimator.get_variable_names()])
    start = np.concatenate([linear_model.WEIGHTS, [linear_model.BIAS]])
    assert not any(np.allclose(value, start[:3]) for value in values[0] if value.shape == (3,))
    for several in values[1:]:
        for one, other in zip(values[0], several):
            np.testing.assert_allclose(other, one, rtol=2e-6, atol=1e-6)


CORES = 4


ROWS_ops_of_cores = np.random.default_rng(7).normal(size=(16, 3)).astype(np.float32)


WEIGHTS = np.array([[0.5, -1.0], [0.25, 1.0], [-0.75, 0.5]], np.float32)


def _rows_of_all_cores(rows: tf.Tensor, cores: int) -> tf.Tensor:
    placed = tf.scatter_nd([[xla.replica_id()]], [rows], [cores, *rows.shape.as_list()])
    return tf.reshape(v1.tpu.cross_replica_sum(placed), [-1, *rows.shape.as_list()[1:]])


def _model_fn_ops_of_cores(features, labels, mode, params):
    del labels
    weights = v1.get_variable("weights", initializer=WEIGHTS)
    rows = tf.matmul(features, weights)
    if mode == "infer":
        number = tf.fill(rows.shape[:1], xla.replica_id())
        return tpu.TPUEstimatorSpec(mode, predictions={"core": number})
    if mode == "eval":
        number = tf.cast(xla.replica_id(), tf.float32) + 0 * rows[:, 0]
        metrics = (lambda number: {"core": v1.metrics.mean(number)}, [number])
        return tpu.TPUEstimatorSpec(mode, loss=tf.reduce_mean(rows), eval_metrics=metrics)
    rows_of_all = _rows_of_all_cores(rows, params["context"].num_replicas)
    loss = tf.reduce_mean(tf.square(tf.matmul(rows, rows_of_all, transpose_b=True)))
    optimizer = tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
    return tpu.TPUEstimatorSpec(
        mode, loss=loss, train_op=optimizer.minimize(loss, v1.train.get_global_step())
    )


@pytest.fixture(scope="module")
def estimator(tmp_path_factory):
    config = tpu.RunConfig(
        master="emulated",
        model_dir=str(tmp_path_factory.mktemp("model")),
        tpu_config=tpu.TPUConfig(num_shards=CORES),
    )
    made = tpu.TPUEstimator(
        _model_fn_ops_of_cores,
        config=config,
        train_batch_size=16,
        eval_batch_size=8,
        predict_batch_size=8,
    )
    made.train(_input_fn_ops_of_cores, steps=1)
    return made


def _input_fn_ops_of_cores(params):
    return (
        tf.data.Dataset.from_tensors((ROWS_ops_of_cores, np.zeros(16)))
        .unbatch()
        .batch(params["batch_size"], drop_remainder=True)
    )


def test_gradients_of_rows_of_all_cores_are_those_of_the_whole_batch(estimator):
    # The loss of all cores together is the mean over all pairs of rows.
    rows = ROWS_ops_of_cores @ WEIGHTS
    gradient = ROWS_ops_of_cores.T @ (4 * (rows @ rows.T) @ rows) / 16**2
    trained = estimator.get_variable_value("weights")
    np.testing.assert_allclose(trained, WEIGHTS - 0.1 * gradient, rtol=1e-4)


def test_rows_know_their_core(estimator):
    predicted = [int(row["core"]) for row in estimator.predict(_input_fn_ops_of_cores)]
    assert predicted == 2 * [0, 0, 1, 1, 2, 2, 3, 3]
    assert estimator.evaluate(_input_fn_ops_of_cores, steps=2)["core"] == np.mean(predicted)


def test_a_short_last_batch_is_core_0s(estimator):
    metrics = estimator.evaluate(
        lambda params: _input_fn_ops_of_cores(params).unbatch().take(10).batch(8)
    )
    assert metrics["core"] == pytest.approx(12 / 10)
