"""A TPUEstimator of TensorFlow 1.12, by three ways to its module."""
import numpy as np
import tensorflow as tf  #: fix import tensorflow as tf -> import tensorflow.compat.v1 as tf
from tensorflow.contrib import tpu  #: fix tf.contrib.tpu -> from tfx_tpu_trainer.estimator import tpu
from tensorflow.contrib.tpu.python.tpu import tpu_config  # private  #: fix tf.contrib.tpu.python.tpu.tpu_config -> import tpu as tpu_config

X = np.float32([[1, 2], [3, 4], [5, 6], [7, 8]] * 4)
Y = np.float32([1, 2, 3, 4] * 4)


def metric_fn(labels, logits):
    return {"mse": tf.metrics.mean_squared_error(labels, logits)}


def model_fn(features, labels, mode, params):
    weights = tf.get_variable("weights", [2, 1])
    logits = tf.squeeze(tf.matmul(features, weights), 1)
    # Means over the core's rows.
    loss = tf.losses.mean_squared_error(labels, logits)
    optimizer = tf.contrib.tpu.CrossShardOptimizer(  #: fix tf.contrib.tpu.CrossShardOptimizer -> tpu.CrossShardOptimizer
        tf.train.GradientDescentOptimizer(0.01))
    total = tpu.cross_replica_sum(tf.reduce_sum(labels))  #: fix tf.contrib.tpu.cross_replica_sum -> tf.tpu.cross_replica_sum
    with tf.control_dependencies([total]):
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return tpu.TPUEstimatorSpec(
        mode, loss=loss, train_op=train_op, eval_metrics=(metric_fn, [labels, logits]))


def input_fn(params):
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).repeat()
    return dataset.apply(
        tf.contrib.data.batch_and_drop_remainder(params["batch_size"]))  #: fix tf.contrib.data.batch_and_drop_remainder -> .batch(params["batch_size"], drop_remainder=True)


resolver = tf.contrib.cluster_resolver.TPUClusterResolver("tpu-of-mine")  #: fix tf.contrib.cluster_resolver.TPUClusterResolver -> tpu.TPUClusterResolver #: note TPUClusterResolver
config = tpu_config.RunConfig(
    cluster=resolver, tpu_config=tpu.TPUConfig(iterations_per_loop=2, num_shards=2))
estimator = tpu.TPUEstimator(
    model_fn, config=config, train_batch_size=8, eval_batch_size=8)
estimator.train(input_fn, max_steps=4)
print(estimator.evaluate(input_fn, steps=2)["mse"])
