"""What of tf.contrib has no other name."""
import tensorflow as tf  #: fix import tensorflow as tf -> import tensorflow.compat.v1 as tf
from tensorflow.contrib import slim  #: edit tf.contrib.slim -> tf_slim
from tensorflow.contrib.training import HParams  #: edit tf.contrib.training.HParams -> types.SimpleNamespace
import tensorflow.contrib.learn as learn  #: edit tf.contrib.learn -> it goes with the last use

hparams = HParams(units=3)
dense = tf.contrib.layers.fully_connected(slim.flatten(tf.ones([1, 2])), hparams.units)  #: edit tf.contrib.layers.fully_connected -> tf.compat.v1.layers.dense(x, units, activation=tf.nn.relu)
normal = tf.contrib.layers.xavier_initializer(uniform=False)  #: edit tf.contrib.layers.xavier_initializer -> glorot_normal_initializer
column = tf.contrib.layers.real_valued_column("x", 3)  #: edit tf.contrib.layers.real_valued_column -> tf.feature_column.numeric_column(key, shape=dimension)
head = tf.contrib.estimator.multi_class_head(3)  #: edit tf.contrib.estimator.multi_class_head -> tf.estimator.MultiClassHead(n_classes
experiment = learn.Experiment(None)  #: edit tf.contrib.learn.Experiment -> tf.estimator.train_and_evaluate
crf = tf.contrib.crf.crf_log_likelihood  #: edit tf.contrib.crf.crf_log_likelihood -> the crf of a package
other = tf.contrib.nccl.all_sum  #: edit tf.contrib.nccl.all_sum -> look for it in TensorFlow 2
model = tf.contrib.tpu.keras_to_tpu_model(None)  #: edit tf.contrib.tpu.keras_to_tpu_model -> keras_to_estimator(model
