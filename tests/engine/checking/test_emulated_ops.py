"""The warning of ops that emulated cores run and TPUs can't."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.engine.log_lines import log_lines
from tests.engine.templates import make_template
from tfx_tpu_trainer.engine.checking.emulated_ops import warn_of_ops_for_hosts
from tfx_tpu_trainer.engine.template import HostFunction
from tfx_tpu_trainer.engine.tracing import fresh_graph

v1 = tf.compat.v1


def _double(x: tf.Tensor) -> tf.Tensor:
    return tf.numpy_function(lambda value: 2 * value, [x], tf.float32)


def _length(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.strings.length(tf.strings.as_string(x)), tf.float32)


def _in_a_branch(x: tf.Tensor) -> tf.Tensor:
    return tf.cond(tf.reduce_any(x > 0), lambda: _double(x), lambda: x)


def _warnings(caplog, predict, **fields) -> list[str]:
    with fresh_graph(None), log_lines(caplog) as lines:
        features = v1.placeholder(tf.float32, [4])
        template = make_template(
            "infer", features=features, predictions={"y": predict(features)}, **fields
        )
        warn_of_ops_for_hosts(template)
    return [line for line in lines if "TPU" in line]


@pytest.mark.parametrize(
    ("predict", "op", "reason"),
    [
        (_double, "PyFunc", "calls Python"),
        (_length, "AsString", "handles strings"),
        (_in_a_branch, "If", "calls Python"),
    ],
)
def test_one_warning_names_op_reason_and_line(caplog, predict, op, reason):
    (line,) = _warnings(caplog, predict)
    assert op in line
    assert reason in line
    assert f"{__file__}:" in line


def test_no_warning_where_a_tpu_can_run_it(caplog):
    assert not _warnings(caplog, lambda x: tf.nn.softmax(x * 2.0))


def test_what_outside_compilation_keeps_on_the_host_is_left_out(caplog):
    assert not _warnings(caplog, lambda x: v1.tpu.outside_compilation(_double, x))


def test_what_makes_the_features_is_no_part_of_the_step(caplog):
    with fresh_graph(None), log_lines(caplog) as lines:
        features = _length(tf.constant(np.ones(4, np.float32)))
        warn_of_ops_for_hosts(make_template("infer", features=features, predictions=features + 1))
    assert not [line for line in lines if "TPU" in line]


def test_tensors_of_host_functions_are_made_on_the_cores(caplog):
    with fresh_graph(None), log_lines(caplog) as lines:
        features = v1.placeholder(tf.float32, [4])
        metrics = HostFunction("eval_metrics", lambda x: {}, [_double(features)])
        warn_of_ops_for_hosts(make_template("eval", features=features, eval_metrics=metrics))
    assert [line for line in lines if "calls Python" in line]
