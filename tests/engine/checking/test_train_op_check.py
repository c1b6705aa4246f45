from __future__ import annotations

import pytest
import tensorflow as tf

from tests.engine.log_lines import log_lines
from tests.engine.templates import make_template
from tfx_tpu_trainer.engine.checking.train_op_check import check_train_op
from tfx_tpu_trainer.engine.tracing import fresh_graph

v1 = tf.compat.v1


def _count():
    return v1.train.get_global_step().assign_add(1, read_value=False)


def _weight():
    return v1.get_variable("model/weight", initializer=2.0)


def _check(build, **fields):
    with fresh_graph():
        check_train_op(make_template("train", train_op=build(), **fields))


def _minimize(optimizer):
    return lambda: optimizer().minimize(tf.square(_weight()), v1.train.get_global_step())


@pytest.mark.parametrize(
    "build",
    [
        _minimize(lambda: v1.train.AdamOptimizer()),
        _minimize(lambda: v1.tpu.CrossShardOptimizer(v1.train.FtrlOptimizer(0.1))),
        lambda: tf.group(_weight().assign_add(1.0), _count()),
        lambda: tf.cond(_weight() > 1, lambda: _weight().assign(1.0), lambda: 0.0),
        lambda: tf.group(v1.py_func(lambda x: x, [_weight()], tf.float32), _count()),
        _count,
    ],
    ids=["adam", "cross shard", "assign", "in a branch", "python", "nothing to train"],
)
def test_decision_14_what_may_train_passes(build):
    _check(_reuses(build))


def _reuses(build):
    def built():
        with v1.variable_scope("", reuse=v1.AUTO_REUSE):
            return build()

    return built


def _keras():
    weight = _weight()
    optimizer = tf.keras.optimizers.Adam()
    update = optimizer.apply_gradients([(tf.gradients(tf.square(weight), weight)[0], weight)])
    return tf.group(update, _count())


def test_decision_14_a_keras_optimizer_is_named():
    says = "changes no variable but the global step, though there are 1 trainable.*optimizer 'Adam'"
    with pytest.raises(ValueError, match=says):
        _check(_keras)


def test_decision_14_only_counting_steps_is_refused():
    with pytest.raises(ValueError, match=r"use one of tf.compat.v1.train"):
        _check(lambda: [_weight(), _count()][1])


def test_decision_14_a_model_with_hooks_may_train_in_them(caplog):
    with log_lines(caplog) as logged:
        _check(lambda: [_weight(), _count()][1], hooks=(v1.train.SessionRunHook(),))
    assert any("changes no variable but the global step" in line for line in logged)
