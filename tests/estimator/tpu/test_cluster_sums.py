"""Sums over cores and the sessions of a TF_CONFIG cluster."""

from __future__ import annotations

import json

import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator import tpu

v1 = tf.compat.v1
CLUSTER = {"chief": ["localhost:1"], "ps": ["localhost:2"]}


def _model_fn(features, labels, mode, params):
    weight = v1.get_variable("weight", [])
    loss = tf.reduce_mean(tf.square(weight * features - labels))
    optimizer = tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
    train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def _input_fn(params):
    rows = tf.data.Dataset.from_tensors((1.0, 2.0)).repeat(8)
    return rows.batch(params["batch_size"], drop_remainder=True)


def test_a_sum_over_cores_is_refused_before_a_cluster_is_asked(tmp_path, monkeypatch):
    task = {"cluster": CLUSTER, "task": {"type": "chief", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(task))
    estimator = tpu.TPUEstimator(
        _model_fn, config=tpu.RunConfig(model_dir=str(tmp_path)), train_batch_size=2, use_tpu=False
    )
    message = r"'CrossReplicaSum' is a sum over TPU cores.*only if params\['use_tpu'\] is true"
    with pytest.raises(ValueError, match=message):
        estimator.train(_input_fn, max_steps=1)
