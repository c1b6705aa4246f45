"""Names of both APIs after one import: each name gets its own edit."""
import tensorflow as tf
from tensorflow import logging  #: fix tf.logging -> from tensorflow.compat.v1 import logging

new = tf.optimizers.Adam
old = tf.train.AdamOptimizer  #: fix tf.train.AdamOptimizer -> tf.compat.v1.train.AdamOptimizer
shape = tf.layers.flatten  #: fix tf.layers.flatten -> tf.compat.v1.layers.flatten #: note Keras 2 -> python -m tfx_tpu_trainer.compat
inputs = tf.estimator.inputs.numpy_input_fn  #: fix tf.estimator.inputs.numpy_input_fn -> tf.compat.v1.estimator.inputs.numpy_input_fn
with tf.Graph().as_default():
    with tf.Session() as session:  #: fix tf.Session -> tf.compat.v1.Session
        assert session.run(tf.add(1, 2)) == 3
column = tf.feature_column.numeric_column("x")
linear = tf.estimator.LinearRegressor(  #: works tf.estimator.LinearRegressor
    [column], optimizer=tf.train.FtrlOptimizer(0.1))  #: fix tf.train.FtrlOptimizer -> tf.compat.v1.train.FtrlOptimizer
linear.train(lambda: tf.data.Dataset.from_tensors(({"x": [1.0]}, [1.0])), steps=1)
logging.info("done")
assert old is tf.compat.v1.train.AdamOptimizer
