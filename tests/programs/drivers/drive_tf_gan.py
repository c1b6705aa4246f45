"""TF-GAN's estimators with its own losses: a generator of points of a ring.

Words: a folder, the number of cores.
"""

import sys

import numpy as np
import tensorflow.compat.v1 as tf
import tensorflow_gan as tfgan

from tests.programs.drivers.calls import Calls, run_config

FOLDER, CORES = sys.argv[1], int(sys.argv[2])
ROWS, BATCH = 32, 8
NOISE = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
POINTS = np.stack([np.cos(NOISE[:, 0]), np.sin(NOISE[:, 0])], axis=1)


def generator(noise, mode):
    hidden = tf.layers.dense(noise, 8, tf.nn.relu)
    return tf.layers.dense(hidden, 2)


def discriminator(points, condition, mode):
    hidden = tf.layers.dense(points, 8, tf.nn.relu)
    return tf.layers.dense(hidden, 1)


def rows(params):
    data = tf.data.Dataset.from_tensor_slices((NOISE, POINTS)).repeat()
    return data.batch(params["batch_size"], drop_remainder=True)


def noise_only(params):
    return tf.data.Dataset.from_tensor_slices(NOISE).batch(
        params["batch_size"], drop_remainder=True
    )


def receiver():
    noise = tf.placeholder(tf.float32, [None, 4])
    return tf.estimator.export.TensorServingInputReceiver(noise, {"noise": noise})


COMMON = {
    "generator_fn": generator,
    "discriminator_fn": discriminator,
    "generator_loss_fn": tfgan.losses.wasserstein_generator_loss,
    "discriminator_loss_fn": tfgan.losses.wasserstein_discriminator_loss,
    "generator_optimizer": tf.train.AdamOptimizer(0.01),
    "discriminator_optimizer": tf.train.AdamOptimizer(0.01),
}


def gan_estimator():
    return tfgan.estimator.GANEstimator(
        model_dir=FOLDER,
        params={"batch_size": BATCH},
        get_eval_metric_ops_fn=lambda model: {"mean": tf.metrics.mean(model.generated_data)},
        config=tf.estimator.RunConfig(tf_random_seed=1),
        **COMMON,
    )


def tpu_gan_estimator():
    return tfgan.estimator.TPUGANEstimator(
        config=run_config(tf.estimator.tpu, FOLDER, CORES),
        use_tpu=CORES > 0,
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
        # Where two steps of the discriminator follow one of the generator.
        gan_train_steps=tfgan.GANTrainSteps(1, 2),
        joint_train=False,
        get_eval_metric_ops_fn=lambda generated_data, real_data: {
            "distance": tf.metrics.mean(tf.square(generated_data - real_data))
        },
        prepare_arguments_for_eval_metric_fn=lambda generated_data, real_data, **_: {
            "generated_data": generated_data,
            "real_data": real_data,
        },
        **COMMON,
    )


calls = Calls(gan_estimator if sys.argv[3] == "GANEstimator" else tpu_gan_estimator)
calls.train_and_resume(rows)
calls.evaluate(rows, steps=2)
calls.predict(noise_only, rows=ROWS)
if sys.argv[3] == "GANEstimator":
    calls.export(receiver, NOISE[:3])
calls.finish()
