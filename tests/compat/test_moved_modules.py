"""Private modules that moved: libraries of Estimator's time find them by their old names."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys

import pytest

from tfx_tpu_trainer.compat._import_hooks import MOVED

LAYERS = """
from tfx_tpu_trainer import compat

with compat.install():
    import tensorflow.compat.v1 as tf
    from tensorflow.python.layers import convolutional, core, normalization, pooling
    with tf.Graph().as_default():
        images = tf.zeros([2, 4, 4, 3])
        maps = convolutional.Conv2D(2, 3, name="conv")(images)
        maps = normalization.BatchNormalization(name="norm")(pooling.MaxPooling2D(2, 1)(maps))
        core.Dense(5, name="dense")(maps)
        print(sorted(v.op.name for v in tf.trainable_variables()))

import sys
print([finder for finder in sys.meta_path if "tfx_tpu_trainer" in type(finder).__module__])
"""

TRACKING = """
from tfx_tpu_trainer import compat

compat.install()
import tensorflow as tf
from tensorflow.python.training.tracking import base, graph_view, tracking, util
from tensorflow.python.training.tracking.data_structures import NoDependency

checkpoint = tf.train.Checkpoint(x=tf.Variable(1.0))
assert isinstance(checkpoint, base.Trackable) and isinstance(checkpoint, tracking.AutoTrackable)
print(len(graph_view.ObjectGraphView(checkpoint).breadth_first_traversal()[0]))
print(util.Checkpoint is tf.train.Checkpoint, NoDependency.__module__)
"""


@pytest.fixture(scope="module")
def said() -> list[str]:
    """What both programs print, one after the other: a process takes seconds to import TensorFlow."""
    ended = subprocess.run(
        [sys.executable, "-c", LAYERS + TRACKING], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout.splitlines()


def test_layers_by_their_private_names_make_variables_of_tensorflow_1(said):
    assert importlib.util.find_spec("tf_keras.legacy_tf_layers") is None, "tf_keras has it: no need"
    variables = [
        "conv/bias",
        "conv/kernel",
        "dense/bias",
        "dense/kernel",
        "norm/beta",
        "norm/gamma",
    ]
    assert said[:2] == [str(variables), "[]"]


@pytest.mark.parametrize("old", MOVED)
def test_each_old_name_is_free_and_the_new_one_is_there(old):
    assert importlib.util.find_spec(MOVED[old]) is not None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(old)


def test_tracking_is_todays_trackable_and_checkpoint(said):
    assert said[2:] == ["2", "True tensorflow.python.trackable.data_structures"]
