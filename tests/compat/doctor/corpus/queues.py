"""Input by queues; the host runs it as it is, once the import is edited."""
import numpy as np
import tensorflow as tf  #: fix import tensorflow as tf -> import tensorflow.compat.v1 as tf


def input_fn():
    x = tf.constant(np.arange(8, dtype=np.float32).reshape([8, 1]))
    row, label = tf.train.slice_input_producer(  #: edit tf.train.slice_input_producer -> tf.data.Dataset.from_tensor_slices(tensors)
        [x, x[:, 0] * 2], num_epochs=2, shuffle=False)
    rows, labels = tf.train.batch([row, label], 4)  #: edit tf.train.batch -> dataset.batch(batch_size, drop_remainder=True)
    return {"x": rows}, labels


def model_fn(features, labels, mode):
    weight = tf.get_variable("weight", [])
    loss = tf.losses.mean_squared_error(labels, features["x"][:, 0] * weight)
    train_op = tf.train.GradientDescentOptimizer(0.01).minimize(
        loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)  #: works tf.estimator.EstimatorSpec


estimator = tf.estimator.Estimator(model_fn)  #: works tf.estimator.Estimator
estimator.train(input_fn)
assert estimator.get_variable_value("global_step") == 4


def by_hand(files):
    queue = tf.train.string_input_producer(files)  #: edit tf.train.string_input_producer -> tf.data.Dataset.from_tensor_slices(files)
    key, line = tf.TextLineReader().read(queue)  #: edit tf.TextLineReader -> tf.data.TextLineDataset(files)
    tf.train.start_queue_runners()  #: edit tf.train.start_queue_runners -> leave it out
    limited = tf.train.limit_epochs(line, 3)  #: edit tf.train.limit_epochs -> dataset.repeat(num_epochs)
    return tf.train.shuffle_batch([limited], 8, 100, 10)  #: edit tf.train.shuffle_batch -> dataset.shuffle(capacity)
