"""Two small models with every optimizer, trained in the same way by the original's TPUEstimator and by ours.

Also a program: it trains and prints what came of it, in whichever environment it runs.

    python -m tests.estimator.exchanged_models MODEL OPTIMIZER FOLDER STEPS
"""

import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.estimator._engine.event_files import read_values

v1 = tf.compat.v1

BATCH, ROWS, WIDTH, WORDS = 4, 16, 3, 5

OPTIMIZERS: dict[str, Callable[[], v1.train.Optimizer]] = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.05, 0.9),
    "adam": lambda: v1.train.AdamOptimizer(0.05),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
    "rmsprop": lambda: v1.train.RMSPropOptimizer(0.02, momentum=0.5),
    "ftrl": lambda: v1.train.FtrlOptimizer(0.5, l2_regularization_strength=0.01),
}


def _variable(name: str, *shape: int) -> tf.Variable:
    """A variable whose first values are known: op seeds differ between versions of TensorFlow."""
    seed = sum(map(ord, name))
    values = np.random.RandomState(seed).uniform(-1, 1, shape).astype(np.float32)
    return v1.get_variable(name, initializer=values)


def _mlp(features: dict[str, tf.Tensor]) -> tf.Tensor:
    hidden = tf.matmul(features["x"], _variable("hidden/kernel", WIDTH, 4))
    hidden = tf.nn.relu(hidden + _variable("hidden/bias", 4))
    return tf.matmul(hidden, _variable("out/kernel", 4, 1)) + _variable("out/bias", 1)


def _embedding_and_loop(features: dict[str, tf.Tensor]) -> tf.Tensor:
    table = _variable("embedding", WORDS, WIDTH)
    looped = _variable("looped", WIDTH, WIDTH)
    hidden = features["x"] + tf.nn.embedding_lookup(table, features["word"])

    def body(number: tf.Tensor, value: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return number + 1, tf.tanh(tf.matmul(value, looped))

    hidden = tf.while_loop(lambda number, value: number < 3, body, (0, hidden))[1]
    return tf.matmul(hidden, _variable("out", WIDTH, 1))


MODELS = {"mlp": _mlp, "embedding_and_loop": _embedding_and_loop}


def input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    """Rows without end, the same ones in each training."""
    random = np.random.RandomState(11)
    x = random.uniform(-1, 1, (ROWS, WIDTH)).astype(np.float32)
    word = random.randint(0, WORDS, ROWS)
    labels = np.sin(3 * x.sum(axis=1, keepdims=True) + word[:, None]).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices(({"x": x, "word": word}, labels))
    return dataset.repeat().batch(params["batch_size"], drop_remainder=True)


def estimator(tpu: Any, model: str, optimizer: str, folder: str) -> Any:
    """A TPUEstimator on the host.

    Args:
        tpu: The original's `tf.compat.v1.estimator.tpu`, or ours.
        model: A key of `MODELS`.
        optimizer: A key of `OPTIMIZERS`.
        folder: Model folder.
    """

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
        loss = tf.reduce_mean(tf.square(MODELS[model](features) - labels))
        train_op = OPTIMIZERS[optimizer]().minimize(loss, v1.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    config = tpu.RunConfig(model_dir=folder, save_summary_steps=1, log_step_count_steps=None)
    return tpu.TPUEstimator(model_fn, config=config, use_tpu=False, train_batch_size=BATCH)


def trained_facts(tpu: Any, model: str, optimizer: str, folder: str, steps: int) -> dict[str, Any]:
    """Trains some steps, from the folder's checkpoint if it has one, and tells what came of it."""
    trained = estimator(tpu, model, optimizer, folder)
    trained.train(input_fn, steps=steps)
    losses = read_values(folder)["loss"]
    last = int(trained.get_variable_value("global_step"))
    return {
        "losses": [losses[step] for step in range(last - steps + 1, last + 1)],
        "values": {
            name: np.asarray(trained.get_variable_value(name)).tolist()
            for name in sorted(trained.get_variable_names())
        },
    }


def main() -> None:
    """Trains as the command line says."""
    model, optimizer, folder, steps = sys.argv[1:]
    original = tf.__version__.startswith("2.15")
    ours = "tfx_tpu_trainer.estimator.tpu"
    tpu = v1.estimator.tpu if original else importlib.import_module(ours)
    print(json.dumps(trained_facts(tpu, model, optimizer, folder, int(steps))))


if __name__ == "__main__":
    main()
