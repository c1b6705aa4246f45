"""Model functions: their optimizers, wrapped here or elsewhere, and whole functions that ours replace."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.compat.doctor import Verdict, examine, repair
from tfx_tpu_trainer.estimator import keras_to_estimator, tpu

# The well-known answer to "how do I turn an Estimator into a TPUEstimator?", shortened.
ANSWER = """\
import tensorflow as tf
from {module} import _save_first_checkpoint, _clone_and_build_model

def model_to_estimator(keras_model, custom_objects=None, model_dir=None, config=None):
  keras_weights = keras_model.get_weights()
  keras_model_fn = _create_keras_tpu_model_fn(keras_model, custom_objects)
  est = tf.contrib.tpu.TPUEstimator(keras_model_fn, model_dir=model_dir, config=config)
  _save_first_checkpoint(keras_model, est, custom_objects, keras_weights)
  return est

def _create_keras_tpu_model_fn(keras_model, custom_objects=None):
  def model_fn(features, labels, mode):
    model = _clone_and_build_model(mode, keras_model, custom_objects, features, labels)
    if mode is not tf.estimator.ModeKeys.PREDICT:
      model.optimizer.optimizer = tf.contrib.tpu.CrossShardOptimizer(model.optimizer.optimizer)
      model._make_train_function()
    metrics = {{"mean": tf.metrics.mean(model.metrics_tensors[0])}}
    return tf.contrib.tpu.TPUEstimatorSpec(mode, loss=model.total_loss, eval_metric_ops=metrics)
  return model_fn

def main():
  estimator = model_to_estimator(tf.keras.Sequential())
  estimator.train(input_fn, steps=1)
"""
MODULES = [
    "tensorflow.python.keras._impl.keras.estimator",
    "tensorflow.python.estimator.keras",
    "tensorflow_estimator.python.estimator.keras",
]


def edits(program):
    return [each for each in examine(program) if each.verdict is Verdict.EDIT]


@pytest.mark.parametrize("module", MODULES)
def test_the_whole_functions_go(module):
    import_, _, _, maker, helper = edits(ANSWER.format(module=module))
    assert import_.name == "import tensorflow as tf"
    assert (maker.line, maker.name, maker.fixable) == (4, "def model_to_estimator", False)
    assert maker.edit.startswith(
        "replace the whole function: from tfx_tpu_trainer.estimator import keras_to_estimator"
    )
    assert (helper.line, helper.edit) == (
        11,
        "leave it out together with model_to_estimator (line 4)",
    )


def test_fix_leaves_what_is_to_be_replaced_as_it_is():
    text = ANSWER.format(module=MODULES[0])
    repaired = repair(text)
    assert repaired.text == text.replace("import tensorflow as", "import tensorflow.compat.v1 as")
    assert len([each for each in repaired.left if each.verdict is Verdict.EDIT]) == 4


def test_without_the_first_checkpoint_it_is_the_same():
    """Its own function needs no private name then, and makes an estimator of one that does."""
    text = ANSWER.format(module=MODULES[0])
    text = re.sub(r"^  _save_first_checkpoint.*\n|_save_first_checkpoint, ", "", text, flags=re.M)
    assert [each.name for each in edits(text)][2:] == [
        "def model_to_estimator",
        "def _create_keras_tpu_model_fn",
    ]


@pytest.mark.parametrize(
    ("program", "line", "edit"),
    [
        (
            (
                "from tensorflow.python.keras import models\nimport tensorflow as tf\n"
                "def model_fn(features, labels, mode, params):\n"
                "  model = models.clone_and_build_model(params['model'], features, labels)\n"
                "  return tf.compat.v1.estimator.tpu.TPUEstimatorSpec(mode, loss=model.total_loss)\n"
            ),
            3,
            "replace it and the estimator that is made of it: from tfx_tpu_trainer.estimator import",
        ),
        (
            (
                "import tensorflow as tf\n"
                "def model_fn(features, labels, mode):\n"
                "  model = make()\n  model._make_train_function()\n"
                "  return tf.estimator.EstimatorSpec(mode, train_op=model.train_function.updates_op)\n"
                "def train():\n  tf.estimator.Estimator(model_fn).train(input_fn)\n"
            ),
            2,
            "replace it and the estimator that is made of it: tf.keras.estimator.model_to_estimator(",
        ),
    ],
)
def test_a_model_fn_of_ones_own(program, line, edit):
    (found,) = (each for each in edits(program) if each.name.startswith("def "))
    assert found.line == line
    assert found.edit.startswith(edit)


def test_keras_s_own_training_is_no_estimator():
    program = "import tensorflow as tf\ndef f(model):\n  model._make_train_function()\n"
    assert examine(program) == []


@pytest.mark.matrix
def test_the_advice_can_be_followed(tmp_path):
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[2])])
    model.compile(tf.keras.optimizers.legacy.SGD(0.1), "mse")
    config = tpu.RunConfig(master="emulated", tpu_config=tpu.TPUConfig(num_shards=2))
    estimator = keras_to_estimator(
        model, model_dir=str(tmp_path), config=config, train_batch_size=4, eval_batch_size=4
    )

    def input_fn(params):
        rows = (np.ones([8, 2], np.float32), np.ones([8, 1], np.float32))
        dataset = tf.data.Dataset.from_tensor_slices(rows).repeat()
        return dataset.batch(params["batch_size"], drop_remainder=True)

    before = estimator.train(input_fn, steps=1).evaluate(input_fn, steps=1)["loss"]
    assert estimator.train(input_fn, steps=3).evaluate(input_fn, steps=1)["loss"] < before


HEAD = "import tensorflow.compat.v1 as tf\nimport optimization\nfrom . import opts\nfrom .opts import make\n"
SPEC = "    return tf.estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)\n"


def _model_fn(optimizer: str, applied: str = "optimizer.minimize(loss)") -> str:
    return (
        f"{HEAD}def model_fn(features, labels, mode, params):\n    loss = features\n"
        f"    {optimizer}\n    train_op = {applied}\n{SPEC}"
    )


@pytest.mark.parametrize(
    "optimizer",
    [
        "optimizer = optimization.create_optimizer(0.1)",
        "optimizer = opts.make(0.1)",
        "optimizer = make(0.1)",
        "optimizer, rate = opts.make(0.1)",
        "optimizer = tpu.CrossShardOptimizer(tf.train.AdamOptimizer())",
    ],
)
def test_an_optimizer_of_a_helper_is_the_helpers_to_wrap(optimizer):
    program = _model_fn(optimizer)
    program = f"from tfx_tpu_trainer.estimator import tpu\n{program}"
    assert [each for each in examine(program) if each.name == ".minimize()"] == []
    assert repair(program).text == program


@pytest.mark.parametrize(
    ("optimizer", "applied", "wrapped"),
    [
        ("optimizer = tf.train.AdamOptimizer()", "optimizer.minimize(loss)", True),
        ("optimizer = optimization.AdamW()", "optimizer.minimize(loss)", True),
        ("pass", "tf.train.AdamOptimizer().minimize(loss)", True),
        # It may be wrapped already.
        ("optimizer = params['optimizer']", "optimizer.minimize(loss)", False),
        ("pass", "params.optimizer.minimize(loss)", False),
    ],
)
def test_an_optimizer_made_here_is_wrapped_and_an_unknown_one_is_told(optimizer, applied, wrapped):
    (found,) = [
        each for each in examine(_model_fn(optimizer, applied)) if each.name == ".minimize()"
    ]
    assert (found.verdict, found.fixable) == (Verdict.EDIT, wrapped)


def test_the_optimizer_that_fix_leaves_is_told_after_it():
    program = _model_fn("optimizer = tf.train.AdamOptimizer()")
    program = program.replace(SPEC, f"    params['o'].minimize(loss)\n{SPEC}")
    assert [each.line for each in repair(program).left if each.name == ".minimize()"] == [10]


def test_private_modules_of_contrib_tpu_are_what_tensorflow_has():
    text = (
        "import tensorflow.compat.v1 as tf\n"
        "from tensorflow.contrib.tpu.python.ops import tpu_ops\n"
        "from tensorflow.contrib.tpu.python.tpu import tpu_feed, tpu_config\n"
        "from tensorflow.contrib.tpu.python.tpu.training_loop import repeat\n"
        "from tensorflow.contrib.tpu.python.tpu import tpu_context\n"
        "from tensorflow.contrib.tpu.python.tpu import error_handling\n"
        "config = tpu_config.TPUConfig()\n"
        "context = tpu_context.TPUContext\n"
    )
    repaired = repair(text)
    assert repaired.text.splitlines()[1:6] == [
        "from tensorflow.python.tpu.ops import tpu_ops",
        "from tensorflow.python.tpu import tpu_feed",
        "from tfx_tpu_trainer.estimator import tpu as tpu_config",
        "from tensorflow.python.tpu.training_loop import repeat",
        "from tfx_tpu_trainer.estimator import tpu as tpu_context",
    ]
    # Names that ours lacks are reported, before and after.
    by_hand = [each for each in examine(text) if not each.fixable]
    assert [each.line for each in by_hand] == [6, 8]
    assert [each.line for each in repaired.left] == [7, 9]


COPY = """\
from tensorflow.contrib.tpu.python.tpu import error_handling, tpu_context
import tensorflow as tf
class _SetEvalIterationsHook(tf.train.SessionRunHook): pass
class _InputPipeline(object): pass
class _ModelFnWrapper(object): pass
class TPUEstimator(tf.estimator.Estimator):
    def __init__(self): self.writer = tf.contrib.summary.create_file_writer("a")
"""


def test_a_copy_of_the_tpu_estimator_gets_one_finding():
    (found,) = examine(COPY)
    assert (found.line, found.verdict, found.fixable) == (6, Verdict.EDIT, False)
    assert "use ours instead" in (found.edit or "")
    assert repair(COPY).text == COPY
    # A class with another name is not a copy.
    assert len(examine(COPY.replace("class _", "class My"))) > 1
