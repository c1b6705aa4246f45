"""Where TensorFlow has Keras 3: its names too, and a word about what needs Keras 2."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.programs.fetching import REPOSITORY

PROGRAM = """
import tensorflow as tf
from tfx_tpu_trainer import compat, estimator

assert tf.keras.__version__.startswith("3.")
assert not hasattr(tf.keras, "estimator")
with compat.install():
    import tensorflow.keras as copied
    for keras in (tf.keras, copied, tf.compat.v1.keras):
        assert keras.estimator.model_to_estimator is estimator.model_to_estimator
    from tensorflow.keras import estimator as imported
    assert imported.model_to_estimator is estimator.model_to_estimator
assert not hasattr(tf.keras, "estimator")
assert not hasattr(copied, "estimator")
print("done")
"""


@pytest.mark.e2e
def test_the_names_are_there_with_keras_3():
    environment = {"PATH": "", "PYTHONPATH": str(REPOSITORY), "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "done\n"
    assert "set TF_USE_LEGACY_KERAS=1 before TensorFlow is imported" in ended.stderr
