"""Summaries of a TPUEstimator by tf.contrib.summary, in a host_call."""
import glob
import os
import tempfile

import tensorflow as tf  #: fix import tensorflow as tf -> import tensorflow.compat.v1 as tf

contrib_summary = tf.contrib.summary  #: fix tf.contrib.summary -> leave it out
FOLDER = tempfile.mkdtemp()


def host_call_fn(step, loss):
    with contrib_summary.create_file_writer(FOLDER, max_queue=10).as_default():  #: fix tf.contrib.summary.create_file_writer -> tf.compat.v2.summary.create_file_writer
        with contrib_summary.always_record_summaries():  #: fix tf.contrib.summary.always_record_summaries -> tf.compat.v2.summary.record_if(True)
            contrib_summary.scalar("loss", tensor=loss[0], step=step[0])  #: fix tf.contrib.summary.scalar -> tf.compat.v2.summary.scalar("loss", loss[0], step=step[0])
            contrib_summary.histogram("losses", loss)  #: fix tf.contrib.summary.histogram -> tf.compat.v2.summary.histogram("losses", loss, step=tf.train.get_or_create_global_step())
            return contrib_summary.all_summary_ops()  #: fix tf.contrib.summary.all_summary_ops -> tf.summary.all_v2_summary_ops


def model_fn(features, labels, mode, params):
    weight = tf.get_variable("weight", [])
    loss = tf.reduce_mean(tf.square(features - weight))
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    train_op = optimizer.minimize(loss, tf.train.get_global_step())  #: fix .minimize() -> optimizer = tpu.CrossShardOptimizer(optimizer)
    step = tf.reshape(tf.train.get_global_step(), [1])
    return tf.contrib.tpu.TPUEstimatorSpec(  #: fix tf.contrib.tpu.TPUEstimatorSpec -> tpu.TPUEstimatorSpec
        mode, loss=loss, train_op=train_op,
        host_call=(host_call_fn, [step, tf.reshape(loss, [1])]))


def train_input_fn(params):
    rows = tf.data.Dataset.from_tensor_slices([1.0, 2.0, 3.0, 4.0]).repeat()
    return rows.batch(params["batch_size"])  #: fix .batch() -> .batch(..., drop_remainder=True)


config = tf.contrib.tpu.RunConfig(tpu_config=tf.contrib.tpu.TPUConfig(num_shards=2))  #: fix tf.contrib.tpu.RunConfig -> tpu.RunConfig #: fix tf.contrib.tpu.TPUConfig -> tpu.TPUConfig
estimator = tf.contrib.tpu.TPUEstimator(model_fn, config=config, train_batch_size=4)  #: fix tf.contrib.tpu.TPUEstimator -> tpu.TPUEstimator
estimator.train(train_input_fn, max_steps=3)
assert glob.glob(os.path.join(FOLDER, "events*"))
