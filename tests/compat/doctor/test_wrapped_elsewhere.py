"""What a program has from elsewhere: optimizers of its helpers, and copies of TensorFlow's own modules."""

from __future__ import annotations

import pytest

from tfx_tpu_trainer.compat.doctor import Verdict, examine, repair

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
    # Names that ours has not are told, before and after.
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
    # A class of that name is no copy.
    assert len(examine(COPY.replace("class _", "class My"))) > 1
