"""Programs that need Keras 2 and know nothing of TF_USE_LEGACY_KERAS."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.bad_input import case

PROGRAM = """
import sys

{imports}

layers = tf.compat.v1.layers if {uses_layers} else None


def input_fn():
    return tf.data.Dataset.from_tensors((tf.ones([4, 2]), tf.ones([4, 1]))).repeat()


def model_fn(features, labels, mode):
    {model}
    loss = tf.reduce_mean(tf.square(outputs - labels))
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    step = tf.compat.v1.train.get_global_step()
    return estimator.EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, step))


made = estimator.Estimator(model_fn, model_dir=sys.argv[1])
made.train(input_fn, steps=2)
print(tf.keras.__name__, made.get_variable_names())
"""
OURS_FIRST = "from tfx_tpu_trainer import estimator\nimport tensorflow as tf"
TENSORFLOW_FIRST = "import tensorflow as tf\nfrom tfx_tpu_trainer import estimator"
DENSE = "outputs = layers.dense(features, 1)"


def _run(folder, imports, model, *, keras=None):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment.pop("TF_USE_LEGACY_KERAS", None)
    if keras is not None:
        environment["TF_USE_LEGACY_KERAS"] = keras
    program = PROGRAM.format(imports=imports, model=model, uses_layers="layers." in model)
    return subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_importing_the_estimators_first_chooses_keras_2(tmp_path):
    ended = _run(tmp_path, OURS_FIRST, DENSE)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("tf_keras.") and "dense/kernel" in ended.stdout


@pytest.mark.sweep
def test_keras_3_stays_where_the_variable_asks_for_it(tmp_path):
    model = 'outputs = features @ tf.compat.v1.get_variable("weights", [2, 1])'
    ended = _run(tmp_path, OURS_FIRST, model, keras="0")
    assert ended.returncode == 0 and ended.stdout.startswith("keras."), ended.stderr


@pytest.mark.parametrize(
    "model",
    [
        case(
            "estimator",
            "a model_fn with tf.compat.v1.layers where TensorFlow was imported with Keras 3",
            "model_fn uses 'dense', which Keras 3 does not have, and TensorFlow was imported with Keras 3",
            "import tfx_tpu_trainer.estimator before tensorflow, or set TF_USE_LEGACY_KERAS=1",
            values=DENSE,
        ),
        case(
            "estimator",
            "a model_fn with tf.keras.optimizers.legacy where TensorFlow was imported with Keras 3",
            "model_fn uses something that Keras 3 does not have, and TensorFlow was imported with Keras 3",
            values="outputs = tf.keras.optimizers.legacy.Adam()",
            marks=[pytest.mark.sweep],
        ),
    ],
)
def test_after_tensorflow_the_first_use_says_what_to_set(tmp_path, refused, model):
    ended = _run(tmp_path, TENSORFLOW_FIRST, model)
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("tfx_tpu_trainer._support.keras_choice.Keras2NeededError: ")
    refused.log(last)
