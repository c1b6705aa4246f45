"""What a TPUEstimator of today refuses, or means otherwise than that of TensorFlow 1.4."""
import tensorflow.compat.v1 as tf
from tfx_tpu_trainer.estimator import tpu


def model_fn(features, labels, mode):  #: fix model_fn -> def model_fn(features, labels, mode, params)
    loss = tf.reduce_mean(tf.get_variable("weight", []) * features)
    optimizer = tf.train.AdamOptimizer()
    gradients = optimizer.compute_gradients(loss)
    train_op = optimizer.apply_gradients(gradients, tf.train.get_global_step())  #: edit .apply_gradients() -> tpu.CrossShardOptimizer(optimizer)
    if mode == tf.estimator.ModeKeys.EVAL:  #: works tf.compat.v1.estimator.ModeKeys
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={})  #: works tf.compat.v1.estimator.EstimatorSpec #: edit eval_metric_ops -> tpu.TPUEstimatorSpec(mode, loss=loss, eval_metrics=(metric_fn
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def train_input_fn():  #: edit train_input_fn -> def train_input_fn(params): batch_size = params["batch_size"]
    return tf.data.Dataset.from_tensors([1.0]).batch(8)  #: fix .batch() -> .batch(..., drop_remainder=True)


def eval_input_fn(params):  #: edit eval_input_fn -> batch_size = params["batch_size"]
    return tf.data.Dataset.from_tensors([1.0]).batch(8)  #: works .batch()


def make_input_fn(files):
    def input_fn(params):
        return tf.data.TFRecordDataset(files).batch(params["batch_size"], drop_remainder=True)
    return input_fn


config = tpu.RunConfig(tpu_config=tpu.TPUConfig(num_shards=8))
first = tpu.TPUEstimator(model_fn, config=config)  #: edit TPUEstimator -> train_batch_size=... #: edit TPUEstimator -> eval_on_tpu=False #: edit TPUEstimator -> predict_batch_size=...
second = tpu.TPUEstimator(  #: edit TPUEstimator -> config=tpu.RunConfig
    model_fn, params={"batch_size": 8}, use_tpu=False)  #: edit params["batch_size"] -> train_batch_size=..., eval_batch_size=...
third = tpu.TPUEstimator(
    model_fn, config=tf.estimator.RunConfig(), train_batch_size=8,  #: works tf.compat.v1.estimator.RunConfig #: edit RunConfig -> tpu.RunConfig
    eval_batch_size=8, predict_batch_size=8)
first.train(train_input_fn)  #: edit .train() -> max_steps=
first.evaluate(eval_input_fn)
list(first.predict(input_fn=lambda: train_input_fn()))  #: edit input_fn -> lambda params:
train_spec = tf.estimator.TrainSpec(train_input_fn)  #: works tf.compat.v1.estimator.TrainSpec #: edit TrainSpec -> max_steps=
eval_spec = tf.estimator.EvalSpec(eval_input_fn, steps=None)  #: works tf.compat.v1.estimator.EvalSpec #: works EvalSpec(steps=None)
first.export_savedmodel("export", None)  #: note .export_savedmodel() -> export_to_tpu=False #: works .export_savedmodel()
master = tf.distribute.cluster_resolver.TPUClusterResolver(tpu_names=["a"]).get_master()  #: note TPUClusterResolver #: edit tpu_names -> tpu=name #: fix .get_master() -> .master()
