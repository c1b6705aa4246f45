"""Metrics added to an Estimator that is there already."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.canned import test_on_cores as cores
from tfx_tpu_trainer import estimator as ours
from tfx_tpu_trainer.estimator import tpu

pytestmark = pytest.mark.matrix

v1 = tf.compat.v1


def metric_fn(features, labels, predictions, config):
    """Error of each row times its weight, and what the others are told by name."""
    assert config.model_dir
    error = tf.cast(labels, tf.float32) - predictions["logistic"][:, 0]
    return {"weighted": v1.metrics.mean(error * features["weight"]), "loss_twice": _keras(error)}


def _keras(error):
    metric = tf.keras.metrics.Mean()
    metric.update_state(error)
    return metric


@pytest.fixture(scope="module")
def expected(canned) -> tuple[float, float]:
    """By formula, from the predictions."""
    features, labels = cores.rows()
    rows = list(canned.predict(lambda: cores.eval_input_fn({"batch_size": 4})))
    error = labels - np.array([row["logistic"][0] for row in rows])
    return (error * features["weight"]).mean(), error.mean()


@pytest.fixture(scope="module")
def canned(tmp_path_factory):
    """A trained linear classifier."""
    columns = [tf.feature_column.numeric_column("x", 2)]
    folder = str(tmp_path_factory.mktemp("canned"))
    canned = ours.LinearClassifier(columns, weight_column="weight", model_dir=folder)
    return canned.train(lambda: cores.train_input_fn({"batch_size": 8}), steps=2)


def test_metrics_are_added_to_a_canned_estimators(canned, expected):
    more = ours.add_metrics(canned, metric_fn)
    metrics = more.evaluate(lambda: cores.eval_input_fn({"batch_size": 8}))
    assert "average_loss" in metrics
    np.testing.assert_allclose((metrics["weighted"], metrics["loss_twice"]), expected, rtol=1e-5)


def test_metrics_are_added_on_cores(canned, expected):
    more = cores.on_cores(ours.add_metrics(canned, metric_fn), canned.model_dir, 2)
    metrics = more.evaluate(cores.eval_input_fn)
    assert "average_loss" in metrics
    np.testing.assert_allclose((metrics["weighted"], metrics["loss_twice"]), expected, rtol=1e-5)


def test_arguments_of_a_metric_fn_are_checked(tmp_path):
    canned = ours.BaselineRegressor(model_dir=str(tmp_path))
    with pytest.raises(ValueError, match=r"not expected args: \['logits'\]"):
        ours.add_metrics(canned, lambda labels, logits: {})
    assert isinstance(tpu.from_estimator(canned, use_tpu=False), tpu.TPUEstimator)
