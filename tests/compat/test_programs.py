"""Whole programs under the command: those of the original's pages as they stand, and one for TensorFlow 1.

`pages/estimator_guide.txt` is the Estimator guide's listings one after the other, as its reader has
them in a notebook; those of a Keras model are `pages/estimator_guide_keras.txt`. Nothing in them is
edited; what they download lies where they look for it before they download.
`pages/tpu_estimator.txt` is the examples of TPUEstimator's page: their `...` is filled in, and around
it stands what makes them run.
"""

import csv
import os
import pathlib
import random
import subprocess
import sys

import pytest
import tf_keras

from tests.programs.fetching import REPOSITORY
from tests.programs.running import run_compat

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
# What is restored and what is learned: a step of the regressor leaves a fifth of its error.
kernel, bias = (est.get_variable_value(f'net/l1/{name}/.ATTRIBUTES/VARIABLE_VALUE') for name in ('kernel', 'bias'))
tf.debugging.assert_near(net(tf.constant([[2.]])), 2. * kernel + bias)
for name in ('feats/weights', 'bias_weights'):
    assert abs(regressor.get_variable_value(f'linear/linear_model/{name}').item() - .5) < 1e-6
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


COLUMNS = (
    "survived",
    "sex",
    "age",
    "n_siblings_spouses",
    "parch",
    "fare",
    "class",
    "deck",
    "embark_town",
    "alone",
)
ROWS = 627
# Women and children, first class before third: how likely each survives.
_SURVIVAL = {"First": 0.63, "Second": 0.47, "Third": 0.22}


def _write_titanic(path: pathlib.Path) -> None:
    """Writes passengers like those of Titanic's train.csv: its columns, spellings, number of rows."""
    source = random.Random(1912)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(_passenger(source) for _ in range(ROWS))


def _passenger(source: random.Random) -> list[object]:
    sex = source.choices(["male", "female"], [65, 35])[0]
    cabin_class = source.choices(list(_SURVIVAL), [24, 21, 55])[0]
    age = float(min(max(round(source.gauss(29, 13)), 1), 80))
    likely = _SURVIVAL[cabin_class] + (0.25 if sex == "female" else -0.15) + 0.3 * (age < 10)
    siblings, parents = (source.choices([0, 1, 2], [68, 22, 10])[0] for _ in range(2))
    fares = {"First": 84.0, "Second": 20.0, "Third": 13.0}
    return [
        int(source.random() < likely),
        sex,
        age,
        siblings,
        parents,
        round(fares[cabin_class] * source.uniform(0.5, 1.5), 4),
        cabin_class,
        source.choice("ABCDE") if cabin_class == "First" else "unknown",
        source.choices(["Southampton", "Cherbourg", "Queenstown"], [72, 19, 9])[0],
        "n" if siblings + parents else "y",
    ]


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


@pytest.mark.matrix
@pytest.mark.e2e
def test_the_estimator_guide_runs_unedited(tmp_path):
    (tmp_path / ".keras" / "datasets").mkdir(parents=True)
    _write_titanic(tmp_path / ".keras" / "datasets" / "train.csv")
    _run(tmp_path, "estimator_guide", GUIDE_RAN)


# tests/estimator/keras has models of this kind, smaller ones, in `make test`.
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
        pytest.param(("--emulate", "2", "--use_tpu"), id="cores", marks=pytest.mark.matrix),
    ],
)
def test_the_examples_of_tpu_estimators_page_run(tmp_path, arguments):
    _run(tmp_path, "tpu_estimator", TPU_RAN, *arguments)


PROGRAM = '''"""A program of 2018."""
from __future__ import print_function

import multiprocessing
import sys

import tensorflow as tf

import model

flags = tf.flags
FLAGS = flags.FLAGS
flags.DEFINE_integer("code", 3, "The exit code.")
flags.DEFINE_string("method", "spawn", "How processes start.")
flags.DEFINE_bool("use_tpu", False, "As then.")
print("before main:", FLAGS.code)


def work(number):
    return number * FLAGS.code, tf.estimator.Estimator.__module__, model.columns()


def main(_):
    config = tf.contrib.tpu.RunConfig(tpu_config=tf.contrib.tpu.TPUConfig(2, num_shards=2))
    estimator = tf.contrib.tpu.TPUEstimator(
        model.model_fn, config=config, use_tpu=FLAGS.use_tpu, train_batch_size=4
    )
    estimator.train(model.input_fn, max_steps=4)
    print("weight %.6f" % estimator.get_variable_value("weight"))
    print("columns", model.columns(), "eager", tf.executing_eagerly())
    with multiprocessing.get_context(FLAGS.method).Pool(1) as pool:
        print(FLAGS.method, pool.map(work, [2]))
    sys.exit(FLAGS.code)


if __name__ == "__main__":
    tf.app.run()
'''

MODEL = """import tensorflow as tf
from tensorflow.contrib import tpu


def columns():
    return tf.placeholder(tf.float32, [3, 4]).shape[1].value


def parse(row):
    for key, value in {"x": row}.iteritems():
        return {key: value}


def input_fn(params):
    rows = tf.data.Dataset.from_tensor_slices([1.0, 1.0]).map(parse).repeat()
    return rows.apply(tf.contrib.data.batch_and_drop_remainder(params["batch_size"]))


def model_fn(features, labels, mode, params):
    weight = tf.get_variable("weight", [], initializer=tf.zeros_initializer())
    loss = tf.reduce_mean(tf.square(3.0 - weight * features["x"]))
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)
"""


@pytest.mark.matrix
@pytest.mark.e2e
@pytest.mark.parametrize(
    ("words", "method"),
    [
        (["--emulate", "2", "--show-repairs"], "spawn"),
        pytest.param(["--repair"], "forkserver", marks=pytest.mark.sweep),
    ],
    ids=["cores_and_spawn", "host_and_forkserver"],
)
def test_a_program_of_tensorflow_1_runs_with_nothing_changed_on_disk(tmp_path, words, method):
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM, encoding="utf-8")
    (folder / "model.py").write_text(MODEL, encoding="utf-8")
    on_cores = "--use_tpu" if "--emulate" in words else "--nouse_tpu"
    ended = run_compat(
        [*words, "train.py", "--code=5", f"--method={method}", on_cores],
        cwd=folder,
        environment={"XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    assert ended.returncode == 5, ended.stderr
    said = ended.stdout.splitlines()
    assert "before main: 5" in said
    # 3 - 3 * (1 - 2 * 0.1)^4
    assert f"weight {3 - 3 * 0.8**4:.6f}" in said
    assert "columns 4 eager False" in said
    assert f"{method} [(10, 'tfx_tpu_trainer.estimator._estimator', 4)]" in said
    assert {path.name for path in folder.rglob("*")} == {"train.py", "model.py"}
    assert (folder / "train.py").read_text(encoding="utf-8") == PROGRAM
    assert len(list((tmp_path / "cache").rglob("*.json"))) == 2
    if "--show-repairs" in words:
        behaviour = "train.py: a program for TensorFlow 1, so tf.compat.v1.disable_v2_behavior()"
        assert behaviour in ended.stderr
        assert ended.stderr.count("+import tensorflow.compat.v1 as tf") == 2
        assert '+    for key, value in {"x": row}.items():' in ended.stderr
    else:
        assert "+++" not in ended.stderr
