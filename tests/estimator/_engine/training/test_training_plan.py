from __future__ import annotations

import pytest
import tensorflow as tf

from tests.estimator._engine.log_lines import log_lines
from tests.estimator._engine.templates import make_template
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator._engine.training.training_plan import check_train_op

v1 = tf.compat.v1


def _count():
    return v1.train.get_global_step().assign_add(1, read_value=False)


def _weight():
    return v1.get_variable("model/weight", initializer=2.0)


def _check(build, **fields):
    with fresh_graph():
        return check_train_op(make_template("train", train_op=build(), **fields))


def _minimize(optimizer):
    return lambda: optimizer().minimize(tf.square(_weight()), v1.train.get_global_step())


def _reuses(build):
    def built():
        with v1.variable_scope("", reuse=v1.AUTO_REUSE):
            return build()

    return built


def _statistic():
    _weight()
    mean = v1.get_variable("mean", initializer=0.0, trainable=False)
    return tf.group(mean.assign(3.0), _count())


@pytest.mark.parametrize(
    ("build", "trains"),
    [
        (_minimize(lambda: v1.train.AdamOptimizer()), True),
        (_minimize(lambda: v1.tpu.CrossShardOptimizer(v1.train.FtrlOptimizer(0.1))), True),
        (lambda: tf.group(_weight().assign_add(1.0), _count()), True),
        (lambda: tf.cond(_weight() > 1, lambda: _weight().assign(1.0), lambda: 0.0), True),
        (lambda: tf.group(v1.py_func(lambda x: x, [_weight()], tf.float32), _count()), True),
        (_statistic, False),
        (_count, False),
        (lambda: tf.no_op(), False),
    ],
    ids=["adam", "cross shard", "assign", "in a branch", "python", "statistic", "count", "no op"],
)
@pytest.mark.behaviour(170)
def test_a_train_op_that_changes_a_variable_or_has_none_to_train_passes_in_silence(
    caplog, build, trains
):
    with log_lines(caplog) as logged:
        assert _check(_reuses(build)) is trains
    assert not [line for line in logged if "changes no variable" in line]


def _minimized_and_left_out():
    weight = _weight()
    v1.train.AdamOptimizer().minimize(tf.square(weight))
    return _count()


@pytest.mark.parametrize(
    ("build", "cause"),
    [
        (_minimized_and_left_out, "The graph has 'Adam/update_model/weight"),
        (
            lambda: [_weight(), _count()][1],
            "The graph has no op of an optimizer: return the result of an optimizer's",
        ),
        (
            lambda: [_weight(), tf.constant("no step")][1],
            "The graph has no op of an optimizer: return the result of an optimizer's",
        ),
    ],
    ids=["lost", "only counts", "a tensor"],
)
@pytest.mark.behaviour(170)
def test_a_train_op_that_trains_nothing_gets_one_warning_with_the_cause(caplog, build, cause):
    with log_lines(caplog) as logged:
        assert not _check(build)
    (warning,) = [line for line in logged if "changes no variable except the global step" in line]
    assert "1 trainable ones" in warning
    assert cause in warning


def test_no_op_is_asked_for_its_definition_by_itself(monkeypatch):
    asked, node_def = [], tf.Operation.node_def.fget

    def counted(op):
        asked.append(op.name)
        return node_def(op)

    with fresh_graph():
        template = make_template("train", train_op=_minimize(lambda: v1.train.AdamOptimizer())())
        monkeypatch.setattr(tf.Operation, "node_def", property(counted))
        assert check_train_op(template)
    assert not asked
