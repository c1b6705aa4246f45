from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.engine.checking import variable_checks
from tfx_tpu_trainer.engine.tracing import fresh_graph

v1 = tf.compat.v1


def _run(fetches, hooks=()):
    with v1.train.MonitoredSession(hooks=hooks) as session:
        return session.run(fetches)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_b174_a_trainable_variable_that_is_no_number(value):
    with fresh_graph():
        weight = v1.get_variable("scope/weight", initializer=1.0)
        spoil = weight.assign(value, read_value=False)
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="Gradient for scope/weight is NaN"
        ):
            _run(variable_checks.after(spoil))


def test_b174_other_variables_and_numbers_pass():
    with fresh_graph():
        v1.get_variable("weight", initializer=1.0)
        v1.get_variable("count", initializer=1)
        v1.get_variable("statistic", initializer=np.float32(np.nan), trainable=False)
        _run(variable_checks.after(tf.no_op()), [variable_checks.VariableChecksHook()])


def test_b174_the_hook_looks_when_the_session_is_made():
    with fresh_graph():
        v1.get_variable("weight", initializer=np.float32(np.nan))
        with pytest.raises(tf.errors.InvalidArgumentError, match="Gradient for weight is NaN"):
            _run(tf.no_op(), [variable_checks.VariableChecksHook()])
