"""The guide's program of a Keras MobileNet V2 that becomes an Estimator.

Run as a script, top to bottom, in a folder of its own: it writes below the current one. What
differs here from the page's listings:

1. Imports; `tf.keras.estimator`, gone since TensorFlow 2.16, is this package's `tfe`.
2. Nothing is downloaded: the network has no weights of ImageNet, and `tfds` is a stand-in with a few
   pictures. Both are smaller (`alpha`, `IMG_SIZE`), and there are fewer steps.
3. The formatter's line breaks and quotes.
"""

import tensorflow as tf

from tests.estimator.guide import stand_ins as tfds
from tfx_tpu_trainer import estimator as tfe

keras_mobilenet_v2 = tf.keras.applications.MobileNetV2(
    input_shape=(32, 32, 3), include_top=False, weights=None, alpha=0.35
)
keras_mobilenet_v2.trainable = False

estimator_model = tf.keras.Sequential(
    [keras_mobilenet_v2, tf.keras.layers.GlobalAveragePooling2D(), tf.keras.layers.Dense(1)]
)

# Compile the model
estimator_model.compile(
    optimizer="adam",
    loss=tf.keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=["accuracy"],
)

est_mobilenet_v2 = tfe.model_to_estimator(keras_model=estimator_model)

IMG_SIZE = 32  # All images will be resized to 32x32


def preprocess(image, label):
    image = tf.cast(image, tf.float32)
    image = (image / 127.5) - 1
    image = tf.image.resize(image, (IMG_SIZE, IMG_SIZE))
    return image, label


def train_input_fn(batch_size):
    data = tfds.load("cats_vs_dogs", as_supervised=True)
    train_data = data["train"]
    return train_data.map(preprocess).shuffle(500).batch(batch_size)


est_mobilenet_v2.train(input_fn=lambda: train_input_fn(32), steps=3)
result = est_mobilenet_v2.evaluate(input_fn=lambda: train_input_fn(32), steps=2)
