"""Libraries that a model_fn computes with, each in a TPUEstimator.

Words: a folder, the number of cores, the library. Each is imported where it is used: the others are not there.
"""

import sys

import tensorflow.compat.v1 as tf

from tests.programs.drivers import models

FOLDER, CORES, LIBRARY = sys.argv[1], int(sys.argv[2]), sys.argv[3]


def accuracy(labels, logits):
    return {"accuracy": tf.metrics.accuracy(labels, tf.argmax(logits, 1))}


def probability(features, labels, mode, params):
    """A regression whose output is a distribution, and a latent of an autoencoder."""
    import tensorflow_probability as tfp

    hidden = tf.layers.dense(features["x"], 8, tf.nn.relu)
    location, scale = tf.split(tf.layers.dense(hidden, 4), 2, axis=1)
    posterior = tfp.distributions.MultivariateNormalDiag(location, tf.nn.softplus(scale) + 1e-3)
    prior = tfp.distributions.MultivariateNormalDiag(tf.zeros([2]), tf.ones([2]))
    code = posterior.mean() if mode != tf.estimator.ModeKeys.TRAIN else posterior.sample(seed=1)
    found = tfp.distributions.Normal(tf.layers.dense(code, 1), 1.0)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return models.predicted(mode, {"mean": found.mean(), "95 %": found.quantile(0.95)})
    divergence = tfp.distributions.kl_divergence(posterior, prior)
    loss = tf.reduce_mean(divergence) - tf.reduce_mean(found.log_prob(labels))
    metrics = (lambda divergence: {"divergence": tf.metrics.mean(divergence)}, [divergence])
    return models.spec(mode, loss, metrics, lambda: tf.train.AdamOptimizer(0.01), CORES)


def trfl(features, labels, mode, params):
    """Action values, learned from transitions."""
    import trfl

    actions = 3
    network = tf.make_template("network", lambda x: tf.layers.dense(x, actions))
    values = network(features["x"])
    if mode == tf.estimator.ModeKeys.PREDICT:
        return models.predicted(mode, {"values": values, "action": tf.argmax(values, axis=1)})
    learned, extra = trfl.double_qlearning(
        values,
        tf.cast(tf.abs(labels[:, 0]), tf.int32) % actions,
        labels[:, 0],
        0.9 * tf.ones_like(labels[:, 0]),
        network(-features["x"]),
        network(features["x"] + 1.0),
    )
    metrics = (lambda error: {"error": tf.metrics.mean(error)}, [extra.td_error])
    return models.spec(
        mode, tf.reduce_mean(learned), metrics, lambda: tf.train.RMSPropOptimizer(0.01), CORES
    )


def privacy(features, labels, mode, params):
    """TensorFlow Privacy's optimizer clips the gradient of each row and adds noise."""
    # TensorFlow of that time had imported it, and the package has only `import distutils`.
    import distutils.version  # noqa: F401

    # As its own programs do, which want parts of the package only.
    sys.skip_tf_privacy_import = True
    from tensorflow_privacy.privacy.optimizers import dp_optimizer

    logits = tf.layers.dense(tf.layers.dense(features["x"], 8, tf.nn.relu), 2)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return models.predicted(mode, {"probabilities": tf.nn.softmax(logits)})
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return models.spec(
        mode,
        tf.reduce_mean(each),
        (accuracy, [labels, logits]),
        lambda: dp_optimizer.DPGradientDescentGaussianOptimizer(
            l2_norm_clip=1.0, noise_multiplier=0.5, num_microbatches=2, learning_rate=0.05
        ),
        CORES,
        to_minimize=each,
    )


def constrained(features, labels, mode, params):
    """TensorFlow Constrained Optimization: few errors, subject to a recall."""
    import tensorflow_constrained_optimization as tfco

    scores = tf.layers.dense(tf.layers.dense(features["x"], 8, tf.nn.relu), 1)[:, 0]
    if mode == tf.estimator.ModeKeys.PREDICT:
        return models.predicted(mode, {"score": scores})
    truth = tf.cast(labels, tf.float32)
    context = tfco.rate_context(scores, truth)
    problem = tfco.RateMinimizationProblem(tfco.error_rate(context), [tfco.recall(context) >= 0.9])
    metrics = (
        lambda truth, scores: {"recall": tf.metrics.recall(truth, scores > 0)},
        [truth, scores],
    )
    return models.spec(
        mode,
        tf.losses.sigmoid_cross_entropy(truth, scores),
        metrics,
        lambda: tfco.ProxyLagrangianOptimizerV1(
            tf.train.AdagradOptimizer(0.1), num_constraints=problem.num_constraints
        ),
        CORES,
        to_minimize=problem,
    )


def kfac(features, labels, mode, params):
    """Curvature from each core's rows; K-FAC sums over cores by itself."""
    import kfac

    # As its own examples for TPUs set it.
    kfac.utils.set_global_constants(posdef_inv_method="cholesky")
    with tf.variable_scope("layer"):
        layer = tf.layers.Dense(2)
        logits = layer(features["x"])
    if mode == tf.estimator.ModeKeys.PREDICT:
        return models.predicted(mode, {"probabilities": tf.nn.softmax(logits)})

    def optimizer():
        collection = kfac.LayerCollection()
        collection.register_fully_connected((layer.kernel, layer.bias), features["x"], logits)
        collection.register_softmax_cross_entropy_loss(logits, seed=1)
        return kfac.PeriodicInvCovUpdateKfacOpt(
            learning_rate=0.01,
            damping=0.1,
            cov_ema_decay=0.9,
            invert_every=2,
            cov_update_every=1,
            layer_collection=collection,
            placement_strategy="replica_round_robin" if CORES else None,
        )

    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    return models.spec(mode, loss, (accuracy, [labels, logits]), optimizer, cores=0)


def sonnet(features, labels, mode, params):
    """Modules of Sonnet 1: an LSTM over the columns of a row."""
    import sonnet as snt

    core = snt.LSTM(8, name="core")
    inputs = snt.BatchApply(snt.Linear(6, name="inputs"))(features["x"][:, :, None])
    outputs, _ = tf.nn.dynamic_rnn(core, inputs, dtype=tf.float32)
    last = snt.LayerNorm()(outputs[:, -1])
    hidden = snt.BatchNorm(scale=True)(last, is_training=mode == tf.estimator.ModeKeys.TRAIN)
    mlp = snt.nets.MLP(
        [8, 1],
        initializers={"w": tf.initializers.truncated_normal(stddev=0.3)},
        regularizers={"w": lambda weights: 1e-4 * tf.nn.l2_loss(weights)},
    )
    found = mlp(hidden)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return models.predicted(mode, {"y": found})
    loss = tf.losses.mean_squared_error(labels, found) + tf.losses.get_regularization_loss()
    metrics = (
        lambda y, found: {"error": tf.metrics.mean_absolute_error(y, found)},
        [labels, found],
    )
    return models.spec(mode, loss, metrics, lambda: tf.train.AdamOptimizer(0.01), CORES)


OF_CLASSES = {"privacy", "constrained", "kfac"}
MAY_BE_NAN = {"kfac": ["KFAC/prev_loss", "KFAC/qmodel_", "KFAC/rho"]}

models.all_calls(
    globals()[LIBRARY],
    FOLDER,
    CORES,
    labels=models.CLASSES if LIBRARY in OF_CLASSES else models.Y,
    unset=MAY_BE_NAN.get(LIBRARY, ()),
)
