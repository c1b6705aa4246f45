import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.evaluating import metric_ops
from tfx_tpu_trainer.estimator._engine.evaluating.metric_ops import (
    IsolatedMetrics,
    NotIsolatedError,
)
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

v1 = tf.compat.v1


def test_pairs_are_split_into_values_by_name_and_updates_in_their_order():
    with fresh_graph():
        pairs = {"b": v1.metrics.mean([1.0, 3.0]), "a": (tf.constant(5.0), tf.no_op(name="up"))}
        values, updates = metric_ops.split(pairs)
    assert list(values) == ["a", "b"]
    assert values["b"] is pairs["b"][0]
    assert updates == [pairs["a"][1], pairs["b"][1]]


def _made(metric_fn, *dtypes):
    with tf.Graph().as_default():
        return IsolatedMetrics(metric_fn, [v1.placeholder(dtype, [4]) for dtype in dtypes])


def test_states_are_taken_up_again():
    metrics = _made(lambda x, w: {"mean": v1.metrics.mean(x, w)}, tf.float32, tf.float64)
    rows = [np.float32([1, 2]), np.float64([1, 3])], [np.float32([5]), np.float64([4])]
    metrics.start(None)
    assert metrics.values() == [0.0]
    metrics.update(rows[0])
    state = metrics.state()
    metrics.start(None)
    metrics.update(rows[1])
    assert metrics.values() == [5.0]
    metrics.start(state)
    metrics.update(rows[1])
    assert metrics.values() == [np.average([1, 2, 5], weights=[1, 3, 4])]


def test_rows_may_be_any_number():
    metrics = _made(lambda x: {"rows": v1.metrics.mean(tf.shape(x)[0])}, tf.float32)
    metrics.start(None)
    for number in (0, 1, 4, 7):
        metrics.update([np.ones(number, np.float32)])
    assert metrics.values() == [3.0]


@pytest.mark.parametrize("dtype", [tf.resource, tf.variant, tf.qint8])
def test_tensors_that_numpy_does_not_know_are_refused(dtype):
    with pytest.raises(NotIsolatedError, match=dtype.name):
        _made(lambda x: {}, dtype)


def test_what_is_no_metric_is_told_in_the_functions_words():
    with pytest.raises(NotIsolatedError, match="TypeError: eval_metric_ops must be a dict"):
        _made(lambda x: x, tf.float32)
