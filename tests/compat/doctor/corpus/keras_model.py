"""A Keras model turned into an estimator: nothing to edit, and the way to cores."""
import numpy as np
import tensorflow as tf

model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[2])])
model.compile("sgd", "mse")
estimator = tf.keras.estimator.model_to_estimator(model)  #: works tf.keras.estimator.model_to_estimator


def input_fn():
    rows = (np.ones([4, 2], np.float32), np.ones([4, 1], np.float32))
    return tf.data.Dataset.from_tensors(rows).repeat(3)


estimator.train(input_fn, steps=2)
assert estimator.evaluate(input_fn)["global_step"] == 2
