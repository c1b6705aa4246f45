"""Handles a model in one line of TFX, for the other to continue with; run by the tests under either line's Python.

    python -m tests.lines.one_side train FOLDER STEPS
    python -m tests.lines.one_side export FOLDER TARGET
    python -m tests.lines.one_side answer EXPORT
    python -m tests.lines.one_side variables FOLDER

The last line that it prints is the answer, as JSON.
"""

import json
import sys

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator import ModeKeys, tpu
from tfx_tpu_trainer.estimator import export as exporting
from tfx_tpu_trainer.serving import load_serving

v1 = tf.compat.v1

ROWS = np.linspace(-1, 1, 8 * 3, dtype=np.float32).reshape(8, 3)
LABELS = (ROWS.sum(axis=1, keepdims=True) > 0).astype(np.float32)


def model_fn(features, mode, labels=None, params=None):
    """Layers of Keras 2, batch statistics and an optimizer with slots: what differs most between lines."""
    del params
    training = mode == ModeKeys.TRAIN
    hidden = v1.layers.dense(features["x"], 4, activation=tf.nn.tanh, name="hidden")
    hidden = v1.layers.batch_normalization(hidden, training=training, momentum=0.9, name="norm")
    logits = v1.layers.dense(hidden, 1, name="logits")
    if mode == ModeKeys.PREDICT:
        return tpu.TPUEstimatorSpec(mode, predictions={"probability": tf.sigmoid(logits)})
    loss = v1.losses.sigmoid_cross_entropy(labels, logits)
    optimizer = tpu.CrossShardOptimizer(v1.train.AdamOptimizer(0.05))
    with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn(params):
    """The same eight rows, in the same order, again and again."""
    dataset = tf.data.Dataset.from_tensor_slices(({"x": ROWS}, LABELS)).repeat()
    return dataset.batch(params["batch_size"], drop_remainder=True)


def estimator(folder: str) -> tpu.TPUEstimator:
    return tpu.TPUEstimator(
        model_fn,
        config=tpu.RunConfig(
            model_dir=folder,
            master="emulated",
            tf_random_seed=1,
            tpu_config=tpu.TPUConfig(num_shards=2, iterations_per_loop=2),
        ),
        train_batch_size=8,
        predict_batch_size=8,
        export_to_tpu=True,
    )


def train(folder: str, steps: str) -> int:
    trained = estimator(folder).train(input_fn, steps=int(steps))
    return int(trained.get_variable_value("global_step"))


def export(folder: str, target: str) -> str:
    def receiver():
        rows = {"x": v1.placeholder(tf.float32, [None, 3], name="x")}
        return exporting.ServingInputReceiver(rows, rows)

    path = estimator(folder).export_saved_model(target, receiver)
    return path if isinstance(path, str) else path.decode()


def answer(exported: str) -> list[float]:
    signature = load_serving(exported).signatures["serving_default"]
    (values,) = signature(x=tf.constant(ROWS)).values()
    return values.numpy().ravel().tolist()


def variables(folder: str) -> dict[str, list[float]]:
    """All that the newest checkpoint holds: weights, batch statistics, slots, the step."""
    reader = tf.train.load_checkpoint(folder)
    return {
        name: np.ravel(reader.get_tensor(name)).astype(float).tolist()
        for name in sorted(reader.get_variable_to_shape_map())
    }


ACTIONS = {action.__name__: action for action in (train, export, answer, variables)}

if __name__ == "__main__":
    print(json.dumps(ACTIONS[sys.argv[1]](*sys.argv[2:])))
