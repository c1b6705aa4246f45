"""An Estimator whose model is made of tf.contrib."""
import numpy as np
import tensorflow as tf  #: fix import tensorflow as tf -> import tensorflow.compat.v1 as tf
import tensorflow.contrib.layers as layers  #: fix tf.contrib.layers -> from tfx_tpu_trainer.compat.contrib import layers
from tensorflow.contrib.framework import get_or_create_global_step  #: fix tf.contrib.framework.get_or_create_global_step -> from tensorflow.compat.v1.train import get_or_create_global_step

metrics = tf.contrib.metrics  #: fix tf.contrib.metrics -> leave it out


def model_fn(features, labels, mode):
    x = layers.flatten(features["x"])
    weights = tf.get_variable(
        "weights", [4, 2],
        initializer=layers.xavier_initializer(seed=3),
        regularizer=tf.contrib.layers.l2_regularizer(0.1 + 0.1))  #: fix tf.contrib.layers.l2_regularizer -> contrib.layers.l2_regularizer
    logits = tf.matmul(x, weights)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    accuracy = metrics.streaming_accuracy(tf.argmax(logits, 1), labels)  #: fix tf.contrib.metrics.streaming_accuracy -> contrib.metrics.streaming_accuracy
    train_op = tf.train.AdamOptimizer().minimize(loss, get_or_create_global_step())
    return tf.estimator.EstimatorSpec(  #: works tf.estimator.EstimatorSpec
        mode, loss=loss, train_op=train_op, eval_metric_ops={"accuracy": accuracy})


def input_fn():
    features = {"x": np.ones([8, 2, 2], np.float32)}
    return tf.data.Dataset.from_tensors((features, np.int64([0, 1] * 4))).repeat(3)


estimator = tf.contrib.estimator.add_metrics(  #: fix tf.contrib.estimator.add_metrics -> tf.estimator.add_metrics
    tf.estimator.Estimator(model_fn),  #: works tf.estimator.Estimator
    lambda labels: {"mean": tf.metrics.mean(labels)})
estimator.train(input_fn, steps=3)
result = estimator.evaluate(input_fn)
assert result["mean"] == 0.5, result
print(sorted(result))
