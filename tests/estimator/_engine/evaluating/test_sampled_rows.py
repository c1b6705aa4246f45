"""Rows that are sampled while metrics are updated, and intervals by resampling them."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.evaluating import metric_ops
from tfx_tpu_trainer.estimator._engine.evaluating.sampled_rows import RowSampler, unsampled

v1 = tf.compat.v1


def _metrics(labels, predictions):
    return {
        "accuracy": v1.metrics.accuracy(labels, predictions > 0.5),
        "mean": v1.metrics.mean(predictions),
        "both": v1.metrics.mean_tensor(tf.stack([tf.reduce_sum(labels), 1.0])),
    }


def _margin(sampler, name):
    """Half of a 95 % interval."""
    return 1.96 * np.std(sampler.taken().deviations()[name], ddof=1)


def _rows(count, seed=3):
    random = np.random.default_rng(seed)
    predictions = random.random(count).astype(np.float32)
    return (random.random(count) < predictions).astype(np.float32), predictions


def _evaluated(sampler, rows, batch_size, *, metric_fn=_metrics, by_name=True):
    """Evaluates as a session does; returns the metrics' values."""
    with tf.Graph().as_default(), v1.Session() as session:
        batch = [v1.placeholder(column.dtype, [None, *column.shape[1:]]) for column in rows]
        names = ("labels", "predictions")
        wrapped = sampler.metric_fn(metric_fn)
        made = wrapped(**dict(zip(names, batch))) if by_name else wrapped(*batch)
        values, updates = metric_ops.split(made)
        session.run([v1.local_variables_initializer(), v1.global_variables_initializer()])
        for start in range(0, len(rows[0]), batch_size):
            parts = [column[start : start + batch_size] for column in rows]
            session.run(updates, dict(zip(batch, parts)))
        return session.run(values)


@pytest.mark.parametrize("by_name", [True, False])
def test_all_rows_of_a_short_evaluation_are_there_in_order(by_name):
    sampler, rows = RowSampler(), _rows(101)
    values = _evaluated(sampler, rows, 10, by_name=by_name)
    taken = sampler.taken()
    assert taken.seen == 101
    assert list(taken.columns) == ["labels", "predictions"]
    for column, expected in zip(taken.columns.values(), rows):
        np.testing.assert_array_equal(column, expected)
    assert values["mean"] == pytest.approx(np.mean(rows[1]), rel=1e-6)
    assert values["accuracy"] == pytest.approx(np.mean((rows[1] > 0.5) == rows[0]), rel=1e-6)


@pytest.mark.parametrize("batch_size", [7, 64, 1000])
def test_a_sample_depends_on_the_rows_places_and_not_on_the_batches(batch_size):
    sampler, (labels, _) = RowSampler(most_rows=50), _rows(1000)
    numbered = np.arange(1000, dtype=np.float32)
    _evaluated(sampler, (labels, numbered), batch_size)
    picked = sampler.taken().columns["predictions"]
    # The rows with the smallest of 1,000 numbers.
    keys = np.random.default_rng(20_240).random(1000)
    np.testing.assert_array_equal(picked, np.sort(np.argsort(keys)[:50]))
    assert sampler.taken().seen == 1000


def test_a_second_evaluation_begins_anew():
    sampler, rows = RowSampler(), _rows(30)
    _evaluated(sampler, rows, 10)
    _evaluated(sampler, tuple(column[:20] for column in rows), 10)
    assert sampler.taken().seen == len(sampler.taken().columns["labels"]) == 20


def test_wide_rows_are_kept_up_to_32_mb():
    sampler = RowSampler()
    wide = np.ones([64, 4096], np.float32)
    for batch in range(100):
        sampler.describe(_metrics, [tf.zeros([1])], ["wide"])
        sampler.add(np.int64(batch), wide)
        held = sum(column.nbytes for column in sampler._columns)
        assert held <= 1.5 * (32 << 20) + wide.nbytes
    (column,) = sampler.taken().columns.values()
    assert column.nbytes == 32 << 20
    assert sampler.taken().seen == 6400


def test_a_margin_is_that_of_the_binomial_distribution():
    sampler, rows = RowSampler(), _rows(2000)
    accuracy = _evaluated(sampler, rows, 100)["accuracy"]
    expected = 1.96 * math.sqrt(accuracy * (1 - accuracy) / 2000)
    assert _margin(sampler, "accuracy") == pytest.approx(expected, rel=0.2)


def test_a_margin_of_more_rows_than_are_drawn_is_narrower_by_their_root():
    sampler, rows = RowSampler(), _rows(50_000)
    _evaluated(sampler, rows, 5000)
    taken = sampler.taken()
    assert len(taken.columns["labels"]) == 20_000
    expected = 1.96 * np.std(rows[1]) / math.sqrt(50_000)
    assert _margin(sampler, "mean") == pytest.approx(expected, rel=0.2)


def test_deviations_are_the_same_each_time_and_of_scalars_only():
    found = []
    for _ in range(2):
        sampler = RowSampler()
        _evaluated(sampler, _rows(300), 100)
        found.append(sampler.taken().deviations())
    assert set(found[0]) == {"accuracy", "mean"}
    for name, deviations in found[0].items():
        np.testing.assert_array_equal(deviations, found[1][name])
        assert np.mean(deviations) == pytest.approx(0, abs=1e-12)


def test_two_models_differ_by_what_a_paired_bootstrap_says():
    labels, predictions = _rows(2000)
    other = np.clip(predictions + 0.1 * np.float32(labels - 0.5), 0, 1)
    samplers = [RowSampler(), RowSampler()]
    for sampler, of_model in zip(samplers, (predictions, other)):
        _evaluated(sampler, (labels, of_model), 100)
    one, two = (sampler.taken().deviations()["mean"] for sampler in samplers)
    expected = np.std(other - predictions) / math.sqrt(2000)
    assert np.std(two - one, ddof=1) == pytest.approx(expected, rel=0.25)
    # Rows of their own would say much more.
    assert np.hypot(np.std(one), np.std(two)) > 5 * expected


def test_a_metric_fn_that_needs_the_models_graph_has_no_interval(caplog):
    def metric_fn(labels, predictions):
        weights = v1.get_variable("weights", initializer=2.0)
        return {"mean": v1.metrics.mean(predictions * weights + labels)}

    sampler = RowSampler()
    _evaluated(sampler, _rows(30), 10, metric_fn=metric_fn)
    assert sampler.taken().deviations() == {}
    assert len(sampler.taken().columns["labels"]) == 30


def test_keras_metrics_are_sampled_too():
    def metric_fn(labels, predictions):
        metric = tf.keras.metrics.Mean()
        metric.update_state(predictions)
        del labels
        return {"mean": metric}

    sampler, rows = RowSampler(), _rows(30)
    values = _evaluated(sampler, rows, 10, metric_fn=metric_fn)
    assert values["mean"] == pytest.approx(np.mean(rows[1]), rel=1e-6)
    assert sampler.taken().seen == 30


def test_tensors_without_rows_are_not_sampled():
    sampler, rows = RowSampler(), _rows(3)

    def metric_fn(labels, predictions):
        return {"mean": v1.metrics.mean(predictions), "first": v1.metrics.mean(labels)}

    values = _evaluated(sampler, (rows[0][:1], rows[1]), 10, metric_fn=metric_fn)
    assert values["mean"] == pytest.approx(np.mean(rows[1]), rel=1e-6)
    assert sampler.taken() is None


def test_before_an_evaluation_there_is_no_sample():
    assert RowSampler().taken() is None


def test_the_wrapping_comes_off():
    sampler = RowSampler()
    assert unsampled(sampler.metric_fn(_metrics)) is _metrics
    assert unsampled(_metrics) is _metrics
    assert sampler.metric_fn(_metrics).__name__ == "_metrics"
