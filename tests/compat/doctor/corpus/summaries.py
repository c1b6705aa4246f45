"""Summaries that no core can write."""
import tensorflow.compat.v1 as tf


def host_call_fn(step, loss):
    tf.summary.scalar("loss", loss[0])  #: edit tf.summary.scalar -> tf.compat.v2.summary.scalar(name, value[0], step=step[0])
    return tf.summary.merge_all()  #: edit tf.summary.merge_all -> all_v2_summary_ops()


def metric_fn(labels):
    words = tf.strings.as_string(labels)  # on the host: fine
    return {"mean": tf.metrics.mean(labels)}


def model_fn(features, labels, mode, params):
    loss = tf.reduce_mean(features)
    tf.summary.histogram("features", features)  #: edit tf.summary.histogram -> host_call=(host_call_fn
    names = tf.strings.as_string(labels)  #: note tf.strings.as_string
    length = tf.py_func(len, [names], tf.int64)  #: note tf.py_func
    host_call = (host_call_fn, [tf.reshape(tf.train.get_global_step(), [1]), tf.reshape(loss, [1])])
    return tf.estimator.tpu.TPUEstimatorSpec(  #: works tf.compat.v1.estimator.tpu.TPUEstimatorSpec
        mode, loss=loss, host_call=host_call, eval_metrics=(metric_fn, [labels]))
