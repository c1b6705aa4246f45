"""A small model, what it is fed, and the command `preflight` on it, as it is typed."""

import json
import pathlib

from click.testing import CliRunner, Result

from tfx_tpu_trainer.workbench.cli.main import main

MODEL = """
import tensorflow as tf
from tfx_tpu_trainer.estimator.tpu import CrossShardOptimizer, TPUEstimatorSpec

v1 = tf.compat.v1
params = {"units": 1}


def model_fn(features, labels, mode, params):
    kernel = v1.get_variable("kernel", [features["x"].shape[1], params["units"]])
    hidden = tf.matmul(features["x"], kernel)
    if params.get("python"):
        hidden = tf.py_function(lambda value: value, [hidden], tf.float32)
        hidden.set_shape([None, params["units"]])
    if mode == "infer":
        return TPUEstimatorSpec(mode, predictions={"y": hidden})
    loss = tf.reduce_mean(tf.square(hidden - labels[:, None]))
    optimizer = CrossShardOptimizer(v1.train.GradientDescentOptimizer(params["rate"]))
    train_op = optimizer.minimize(loss, v1.train.get_global_step())
    return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)
"""

INPUT = """

def input_fn(params):
    row = ({"x": tf.zeros([8192])}, tf.zeros([]))
    return tf.data.Dataset.from_tensors(row).repeat().batch(params["batch_size"], drop_remainder=True)
"""

SPEC = {
    "features": {
        "x": {"dtype": "float32", "shape": [8192]},
        "y": {"dtype": "float32", "shape": []},
    },
    "label_key": "y",
}


def options_of_files(folder: pathlib.Path) -> dict[str, str]:
    """Writes the model into a folder; returns the options that name it."""
    (folder / "small_model.py").write_text(MODEL, encoding="utf-8")
    (folder / "spec.json").write_text(json.dumps(SPEC), encoding="utf-8")
    return {
        "module_file": str(folder / "small_model.py"),
        "feature_spec": str(folder / "spec.json"),
        "params": '{"rate": 0.1}',
        "tpu": "v5e:2x4",
        "batch_size": "64",
        "steps": "train",
    }


def preflight(options, *flags) -> Result:
    given = [f"--{name}={value}" for name, value in options.items() if value is not None]
    return CliRunner().invoke(main, ["preflight", *given, *flags])
