"""The prediction example of the original's page: features['is_padding'].

The page's listing is not a program. What differs here from it:

1. Imports; `tf.contrib.tpu.TPUEstimatorSpec`, gone since TensorFlow 2.0, and
   `tf.estimator.ModeKeys`, gone since 2.16, are this package's.
2. `output`, which a comment stands for, is the mean of each image.
3. The `...` among TPUEstimator's arguments is a configuration and train_batch_size; where it runs
   is an argument of the function around it.
4. `input_fn`, which is not defined, is `predict_input_fn`.
5. The two comments in the loop are code.
"""

# ruff: noqa: RET503, RET504 - lines of the listing

from __future__ import annotations

import tensorflow as tf

from tfx_tpu_trainer.estimator import ModeKeys
from tfx_tpu_trainer.estimator.tpu import TPUEstimator, TPUEstimatorSpec

height = 32
width = 32
total_examples = 100


def predict_input_fn(params):
    batch_size = params["batch_size"]

    images = tf.random.uniform([total_examples, height, width, 3], minval=-1, maxval=1)

    dataset = tf.data.Dataset.from_tensor_slices(images)
    dataset = dataset.map(lambda images: {"image": images})

    dataset = dataset.batch(batch_size)
    return dataset


def model_fn(features, labels, params, mode):
    # Generate predictions, called 'output', from features['image']
    output = tf.reduce_mean(features["image"], axis=[1, 2, 3])

    if mode == ModeKeys.PREDICT:
        return TPUEstimatorSpec(
            mode=mode,
            predictions={
                "predictions": output,
                "is_padding": features["is_padding"],
            },
        )


def predict(config, *, use_tpu):
    """What stands at the listing's top level."""
    tpu_est = TPUEstimator(
        model_fn=model_fn,
        config=config,
        train_batch_size=16,
        use_tpu=use_tpu,
        predict_batch_size=16,
    )

    # Fully consume the generator so that TPUEstimator can shutdown the TPU
    # system.
    kept = []
    for item in tpu_est.predict(input_fn=predict_input_fn):
        # Filter out item if the `is_padding` is 1.
        if not item["is_padding"]:
            # Process the 'predictions'
            kept.append(item["predictions"])
    return kept
