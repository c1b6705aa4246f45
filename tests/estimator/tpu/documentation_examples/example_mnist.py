"""The MNIST example of the original's page: eval_metrics as a list, and as a dict.

The page's listing is not a program. What differs here from it:

1. Imports: `tpu_estimator` is this package's `estimator.tpu`, `ModeKeys` this package's, as
   `tf.estimator` is gone from TensorFlow 2.16.
2. `if mode = ...` is a syntax error; here it is `==`.
3. The first `...` of each model_fn is a network of one hidden layer.
4. `logits = ...` and `final_layer_output = ...` are its last layer.
5. `loss`, which the listing reads and never makes, is made.
6. What model_fn returns outside of EVAL, which the listing leaves out, is added: `finish`.
7. The two functions of one name have names of their own.

The metric called accuracy is `metrics.precision`, as in the listing.
"""

from __future__ import annotations

import tensorflow as tf

from tfx_tpu_trainer.estimator import ModeKeys
from tfx_tpu_trainer.estimator import tpu as tpu_estimator

v1 = tf.compat.v1


# The metric Fn which runs on CPU.
def metric_fn(labels, logits):
    predictions = tf.argmax(logits, 1)
    return {
        "accuracy": tf.compat.v1.metrics.precision(labels=labels, predictions=predictions),
    }


def hidden_layer(features):
    """Stands for the listing's `...`."""
    flat = v1.layers.flatten(features["image"])
    initializer = v1.random_normal_initializer(stddev=0.1, seed=1)
    return v1.layers.dense(flat, 16, tf.nn.relu, kernel_initializer=initializer)


def last_layer(hidden):
    initializer = v1.random_normal_initializer(stddev=0.1, seed=2)
    return v1.layers.dense(hidden, 10, kernel_initializer=initializer)


def finish(mode, logits, loss, params):
    """Not in the listing: training and prediction."""
    if mode == ModeKeys.PREDICT:
        return tpu_estimator.TPUEstimatorSpec(
            mode=mode, predictions={"class": tf.argmax(logits, 1)}
        )
    optimizer = v1.train.AdamOptimizer(0.01)
    if params["use_tpu"]:
        optimizer = tpu_estimator.CrossShardOptimizer(optimizer)
    train_op = optimizer.minimize(loss, v1.train.get_global_step())
    return tpu_estimator.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op)


def loss_of(labels, logits):
    return None if labels is None else v1.losses.sparse_softmax_cross_entropy(labels, logits)


# Your model Fn which runs on TPU (eval_metrics is list in this example)
def model_fn_with_list(features, labels, mode, config, params):
    hidden = hidden_layer(features)
    logits = last_layer(hidden)
    loss = loss_of(labels, logits)

    if mode == ModeKeys.EVAL:
        return tpu_estimator.TPUEstimatorSpec(
            mode=mode, loss=loss, eval_metrics=(metric_fn, [labels, logits])
        )
    return finish(mode, logits, loss, params)


# or specify the eval_metrics tensors as dict.
def model_fn_with_dict(features, labels, mode, config, params):
    hidden = hidden_layer(features)
    final_layer_output = last_layer(hidden)
    loss = loss_of(labels, final_layer_output)

    if mode == ModeKeys.EVAL:
        return tpu_estimator.TPUEstimatorSpec(
            mode=mode,
            loss=loss,
            eval_metrics=(
                metric_fn,
                {
                    "labels": labels,
                    "logits": final_layer_output,
                },
            ),
        )
    return finish(mode, final_layer_output, loss, params)
