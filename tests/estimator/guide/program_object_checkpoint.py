"""The guide's program of object-based checkpoints: a Keras model trained, then restored eagerly.

Run as a script, top to bottom, in a folder of its own: it writes below the current one. What
differs here from the page's listings:

1. Imports; `tf.estimator`, gone since TensorFlow 2.16, is this package's, `tfe`.
2. The formatter's line breaks and quotes.
"""

# ruff: noqa: C408, UP008 - lines of the listing

import tensorflow as tf
import tensorflow.compat.v1 as tf_compat

from tfx_tpu_trainer import estimator as tfe


def toy_dataset():
    inputs = tf.range(10.0)[:, None]
    labels = inputs * 5.0 + tf.range(5.0)[None, :]
    return tf.data.Dataset.from_tensor_slices(dict(x=inputs, y=labels)).repeat().batch(2)


class Net(tf.keras.Model):
    """A simple linear model."""

    def __init__(self):
        super(Net, self).__init__()
        self.l1 = tf.keras.layers.Dense(5)

    def call(self, x):
        return self.l1(x)


def model_fn(features, labels, mode):
    net = Net()
    opt = tf.keras.optimizers.Adam(0.1)
    ckpt = tf.train.Checkpoint(step=tf_compat.train.get_global_step(), optimizer=opt, net=net)
    with tf.GradientTape() as tape:
        output = net(features["x"])
        loss = tf.reduce_mean(tf.abs(output - features["y"]))
    variables = net.trainable_variables
    gradients = tape.gradient(loss, variables)
    return tfe.EstimatorSpec(
        mode,
        loss=loss,
        train_op=tf.group(opt.apply_gradients(zip(gradients, variables)), ckpt.step.assign_add(1)),
        # Tell the Estimator to save "ckpt" in an object-based format.
        scaffold=tf_compat.train.Scaffold(saver=ckpt),
    )


tf.keras.backend.clear_session()
est = tfe.Estimator(model_fn, "./tf_estimator_example/")
est.train(toy_dataset, steps=10)

opt = tf.keras.optimizers.Adam(0.1)
net = Net()
ckpt = tf.train.Checkpoint(step=tf.Variable(1, dtype=tf.int64), optimizer=opt, net=net)
ckpt.restore(tf.train.latest_checkpoint("./tf_estimator_example/"))
ckpt.step.numpy()  # From est.train(..., steps=10)
