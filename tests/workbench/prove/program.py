"""A program of a TPUEstimator with a little of everything; the tests plant faults in its text.

Words: a folder, the number of cores.
"""

import sys

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
FOLDER, CORES = sys.argv[1], int(sys.argv[2])
ROWS, BATCH, STEPS = 32, 8, 4
RANDOM = np.random.default_rng(0)
FEATURES = {name: RANDOM.normal(size=(ROWS, 3)).astype(np.float32) for name in ("a", "b")}
LABELS = np.sum(FEATURES["a"] - 2 * FEATURES["b"], axis=1, keepdims=True)
WEIGHTS = np.ones([ROWS, 1], np.float32)


def rows(params):
    data = tf.data.Dataset.from_tensor_slices(({**FEATURES, "weight": WEIGHTS}, LABELS))
    return data.repeat().batch(params["batch_size"], drop_remainder=True)


def rows_once(params):
    data = tf.data.Dataset.from_tensor_slices({**FEATURES, "weight": WEIGHTS})
    return data.batch(params["batch_size"], drop_remainder=True)


def model_fn(features, labels, mode, params):
    training = mode == tf.estimator.ModeKeys.TRAIN
    inputs = tf.concat([features["a"], features["b"]], axis=1, name="inputs")
    hidden = v1.layers.dense(
        inputs,
        8,
        tf.nn.relu,
        kernel_regularizer=lambda kernel: 0.01 * tf.nn.l2_loss(kernel),
        kernel_initializer=v1.truncated_normal_initializer(stddev=0.5),
        name="hidden",
    )
    if not CORES:
        hidden = v1.layers.batch_normalization(
            hidden, momentum=0.9, epsilon=1e-3, training=training, name="normal"
        )
        hidden = v1.layers.dropout(hidden, 0.3, training=training, name="drop")
    found = v1.layers.dense(hidden, 1, use_bias=True, name="found")
    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {"y": found * 1.0, "class": tf.cast(found > 0.0, tf.int64)}
        return v1.estimator.tpu.TPUEstimatorSpec(mode, predictions)
    loss = v1.losses.mean_squared_error(labels, found, weights=features["weight"], scope="error")
    loss = tf.multiply(1.0, loss + v1.losses.get_regularization_loss(), name="total")
    train_op = None
    if training:
        step = v1.train.get_global_step()
        rate = v1.train.exponential_decay(0.05, step, 10, 0.9, staircase=False, name="rate")
        optimizer = v1.train.MomentumOptimizer(rate, 0.9, use_nesterov=False)
        if CORES:
            optimizer = v1.tpu.CrossShardOptimizer(optimizer)
        gradients, variables = zip(*optimizer.compute_gradients(loss))
        if not CORES:
            # A core's norm is not the host's.
            gradients, _ = tf.clip_by_global_norm(gradients, 1.0, name="clipped")
        updates = v1.get_collection(v1.GraphKeys.UPDATE_OPS)
        with tf.control_dependencies(updates):
            train_op = optimizer.apply_gradients(zip(gradients, variables), step)
    metrics = (
        lambda y, found: {"error": v1.metrics.mean_absolute_error(y, found)},
        [labels, found],
    )
    return v1.estimator.tpu.TPUEstimatorSpec(
        mode, loss=loss, train_op=train_op, eval_metrics=metrics
    )


def receiver():
    features = {
        name: v1.placeholder(tf.float32, [None, 3 if name in FEATURES else 1], name)
        for name in ("a", "b", "weight")
    }
    return tf.estimator.export.ServingInputReceiver(features, features)


config = v1.estimator.tpu.RunConfig(
    model_dir=f"{FOLDER}/model",
    tpu_config=v1.estimator.tpu.TPUConfig(iterations_per_loop=2, num_shards=max(CORES, 1)),
)
estimator = v1.estimator.tpu.TPUEstimator(
    model_fn,
    config=config,
    use_tpu=CORES > 0,
    train_batch_size=BATCH,
    eval_batch_size=BATCH,
    predict_batch_size=BATCH,
    export_to_tpu=False,
)
estimator.train(rows, steps=STEPS)
estimator.evaluate(rows, steps=4)
print(len(list(estimator.predict(rows_once))), "rows")
estimator.export_saved_model(f"{FOLDER}/export", receiver)
