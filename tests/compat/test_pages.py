"""The programs of the original's pages run as they stand under the command.

`pages/estimator_guide.txt` is the Estimator guide's listings one after the other, as its reader has
them in a notebook; those of a Keras model are `pages/estimator_guide_keras.txt`. Nothing in them is
edited; what they download lies where they look for it before they download.
`pages/tpu_estimator.txt` is the examples of TPUEstimator's page: their `...` is filled in, and around
it stands what makes them run.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
import tf_keras

from tests.estimator.guide import stand_ins
from tests.programs.fetching import REPOSITORY

PAGES = pathlib.Path(__file__).parent / "pages"

PICTURES = """
import tensorflow as tf

def load(name, *, as_supervised):
    pictures = tf.cast(tf.random.uniform([3, 40, 48, 3], 0, 256, tf.int32), tf.uint8)
    return {'train': tf.data.Dataset.from_tensor_slices((pictures, [0, 1, 0]))}
"""

GUIDE_RAN = """
assert result['global_step'] == 100 and 0.5 < result['auc'] < 1, result
assert set(pred) >= {'logits', 'probabilities', 'class_ids', 'classes'}, pred
assert ckpt.step.numpy() == 10
net(tf.ones([1, 1]))
# Ten steps of Adam(0.1) towards labels that are far above.
assert (net.l1.bias.numpy() > 0.9).all(), net.l1.bias
assert predict(1.5)['class_ids'].numpy() == [[1]] and predict(3.5)['class_ids'].numpy() == [[0]]
assert regressor.evaluate(input_fn=input_fn, steps=10)['loss'] < 1e-6
"""

KERAS_RAN = """
names = est_mobilenet_v2.get_variable_names()
bias, = (name for name in names if name.startswith('layer_with_weights-1/bias/.ATTR'))
assert est_mobilenet_v2.get_variable_value(bias) != 0
assert estimator_model.layers[-1].bias.numpy() == 0
"""

TPU_RAN = """
for metrics in evaluated:
    assert metrics['global_step'] == 20 and metrics['accuracy'] == 1, metrics
assert len(kept) == total_examples == len(set(kept))
served = tf.saved_model.load(exported.decode(), tags=['serve']).signatures['classes']
examples = [tf.train.Example() for _ in range(3)]
for example, label in zip(examples, (2, 0, 1)):
    example.features.feature['image'].float_list.value.extend(tf.one_hot(label, 4).numpy())
answers = served(tf.constant([example.SerializeToString() for example in examples]))
assert answers['classes'].numpy().tolist() == [[b'2'], [b'0'], [b'1']], answers
"""


def _run(folder: pathlib.Path, page: str, ran: str, *arguments: str) -> None:
    program = folder / "program.py"
    program.write_text((PAGES / f"{page}.txt").read_text(encoding="utf-8") + ran)
    environment = {
        **os.environ,
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{folder}",
    }
    options = [each for each in arguments if each != "--use_tpu"]
    command = [sys.executable, "-m", "tfx_tpu_trainer.compat", *options, str(program)]
    if "--use_tpu" in arguments:
        command.append("--use_tpu")
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-5000:]


@pytest.mark.e2e
def test_the_estimator_guide_runs_unedited(tmp_path):
    (tmp_path / ".keras" / "datasets").mkdir(parents=True)
    stand_ins.titanic_csv(str(tmp_path / ".keras" / "datasets" / "train.csv"))
    _run(tmp_path, "estimator_guide", GUIDE_RAN)


# tests/estimator/guide has the same program on a small network, in `make test`.
@pytest.mark.e2e
@pytest.mark.sweep
def test_the_guides_keras_model_runs_unedited(tmp_path):
    (tmp_path / ".keras" / "models").mkdir(parents=True)
    name = "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_160_no_top.h5"
    network = tf_keras.applications.MobileNetV2(
        input_shape=(160, 160, 3), include_top=False, weights=None
    )
    network.save_weights(str(tmp_path / ".keras" / "models" / name))
    (tmp_path / "tensorflow_datasets.py").write_text(PICTURES)
    _run(tmp_path, "estimator_guide_keras", KERAS_RAN)


@pytest.mark.e2e
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param((), id="host", marks=pytest.mark.sweep),
        pytest.param(("--emulate", "2", "--use_tpu"), id="cores"),
    ],
)
def test_the_examples_of_tpu_estimators_page_run(tmp_path, arguments):
    _run(tmp_path, "tpu_estimator", TPU_RAN, *arguments)
