from __future__ import annotations

import pytest
import tensorflow as tf
import tf_keras

from tfx_tpu_trainer.estimator._engine.evaluating import metric_ops
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

v1 = tf.compat.v1


def _updated_keras_mean(values) -> tf_keras.metrics.Metric:
    metric = tf_keras.metrics.Mean(name="mean")
    metric.update_state(values)
    return metric


def test_pairs_are_split_into_values_by_name_and_updates_in_their_order():
    with fresh_graph():
        pairs = {"b": v1.metrics.mean([1.0, 3.0]), "a": (tf.constant(5.0), tf.no_op(name="up"))}
        values, updates = metric_ops.split(pairs)
    assert list(values) == ["a", "b"]
    assert values["b"] is pairs["b"][0]
    assert updates == [pairs["a"][1], pairs["b"][1]]


@pytest.mark.behaviour(212)
def test_a_keras_metric_gives_its_result_and_updates():
    with fresh_graph():
        metric = _updated_keras_mean([2.0, 4.0])
        values, updates = metric_ops.split({"mean": metric})
        with v1.Session() as session:
            session.run(v1.local_variables_initializer())
            session.run(updates)
            session.run(updates)
            assert session.run(values) == {"mean": 3.0}


@pytest.mark.behaviour(304)
def test_a_keras_metrics_variables_are_local_and_metric_variables_once():
    with fresh_graph():
        metric = _updated_keras_mean([1.0])
        metric_ops.add_metric_variables(metric)
        metric_ops.add_metric_variables(metric)
        for collection in (v1.GraphKeys.LOCAL_VARIABLES, v1.GraphKeys.METRIC_VARIABLES):
            found = v1.get_collection(collection)
            assert len(found) == len(metric.variables) == 2
            assert all(any(v is other for other in metric.variables) for v in found)


@pytest.mark.behaviour(304)
def test_a_keras_metric_without_updates_is_refused():
    with fresh_graph(), pytest.raises(ValueError, match=r"Please call update_state.* key quiet"):
        metric_ops.value_and_update("quiet", tf_keras.metrics.Mean())


@pytest.mark.parametrize(
    "metric", [3.0, "ab", (1,), (1, 2, 3), [1, 2], None, {"value": 1, "update": 2}]
)
@pytest.mark.behaviour(304)
def test_anything_else_is_refused_with_its_name(metric):
    with pytest.raises(TypeError, match=r"tuples, given: .* for key: odd"):
        metric_ops.value_and_update("odd", metric)
