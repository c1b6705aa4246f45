from __future__ import annotations

import pytest
import tensorflow as tf

from tfx_tpu_trainer.engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.tpu.host_scaffold import make_host_scaffold

v1 = tf.compat.v1


def _make(scaffold_fn):
    with fresh_graph():
        rows = v1.placeholder(tf.float32, [2])
        weight = v1.get_variable("weight", initializer=1.0)
        loss = tf.reduce_sum(rows * weight)
        return make_host_scaffold(lambda: scaffold_fn(weight, loss), [rows, None])


@pytest.mark.parametrize(
    "scaffold_fn",
    [
        lambda weight, loss: v1.train.Scaffold(),
        lambda weight, loss: v1.train.Scaffold(saver=v1.train.Saver([weight])),
        lambda weight, loss: v1.train.Scaffold(local_init_op=weight.assign(2.0)),
        lambda weight, loss: v1.train.Scaffold(init_fn=lambda *_: None),
    ],
)
@pytest.mark.behaviour(265)
def test_what_needs_no_core_is_used(scaffold_fn):
    assert isinstance(_make(scaffold_fn), v1.train.Scaffold)


@pytest.mark.parametrize(
    "scaffold_fn",
    [
        lambda weight, loss: v1.train.Scaffold(summary_op=tf.strings.as_string(loss)),
        lambda weight, loss: v1.train.Scaffold(local_init_op=weight.assign(loss)),
        lambda weight, loss: v1.train.Scaffold(init_op=loss.op),
        lambda weight, loss: [tf.identity(loss), v1.train.Scaffold()][1],
    ],
)
@pytest.mark.behaviour(267)
def test_what_depends_on_a_core_is_refused(scaffold_fn):
    with pytest.raises(ValueError, match=r"scaffold_fn: op .* depends on TPU computation"):
        _make(scaffold_fn)


@pytest.mark.behaviour(266)
def test_none_is_refused():
    with pytest.raises(ValueError, match="scaffold_fn returns None, which is not allowed"):
        _make(lambda weight, loss: None)
