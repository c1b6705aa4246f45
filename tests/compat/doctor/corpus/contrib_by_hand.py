"""What of tf.contrib has no other name."""
import tensorflow as tf  #: fix import tensorflow as tf -> import tensorflow.compat.v1 as tf
from tensorflow.contrib import slim  #: fix tf.contrib.slim -> from tfx_tpu_trainer.compat.contrib import slim
from tensorflow.contrib.training import HParams  #: fix tf.contrib.training.HParams -> from tfx_tpu_trainer.compat.contrib.training import HParams
import tensorflow.contrib.learn as learn  #: edit tf.contrib.learn -> remove it together with its last use

hparams = HParams(units=3)
dense = tf.contrib.layers.fully_connected(slim.flatten(tf.ones([1, 2])), hparams.units)  #: fix tf.contrib.layers.fully_connected -> contrib.layers.fully_connected
network = slim.nets.resnet_v1.resnet_v1_50(None)  #: edit tf.contrib.slim.nets.resnet_v1.resnet_v1_50 -> slim's networks are in the package tf_slim
normal = tf.contrib.layers.xavier_initializer(uniform=False)  #: fix tf.contrib.layers.xavier_initializer -> contrib.layers.xavier_initializer
column = tf.contrib.layers.real_valued_column("x", 3)  #: edit tf.contrib.layers.real_valued_column -> tf.feature_column.numeric_column(key, shape=dimension)
head = tf.contrib.estimator.multi_class_head(3)  #: edit tf.contrib.estimator.multi_class_head -> tf.estimator.MultiClassHead(n_classes
experiment = learn.Experiment(None)  #: edit tf.contrib.learn.Experiment -> tf.estimator.train_and_evaluate
engine = tf.contrib.tensorrt.create_inference_graph  #: edit tf.contrib.tensorrt.create_inference_graph -> tf.experimental.tensorrt
other = tf.contrib.nccl.all_sum  #: edit tf.contrib.nccl.all_sum -> look for it in TensorFlow 2
model = tf.contrib.tpu.keras_to_tpu_model(None)  #: edit tf.contrib.tpu.keras_to_tpu_model -> keras_to_estimator(model
