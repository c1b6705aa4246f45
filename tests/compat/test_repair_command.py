"""`python -m tfx_tpu_trainer.compat --repair PROGRAM`: a program for TensorFlow 1, unedited."""

from __future__ import annotations

import pytest

from tests.programs.running import run_compat
from tfx_tpu_trainer.compat.__main__ import separate

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


def test_a_package_to_repair_takes_its_name():
    words = ["--repair", "--repair-package", "sonnet", "prog.py", "--repair", "x"]
    assert separate(words) == [*words[:3], "--", *words[3:]]


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
