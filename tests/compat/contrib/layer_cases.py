"""Layers of contrib, called as programs call them. Runs with TensorFlow 1.15 too."""

import tensorflow as tf

from tests.compat.contrib.graph_facts import input_values

v1 = tf.compat.v1


def layer_norm(contrib):
    x = tf.constant(input_values(4, 3, 6))
    with v1.variable_scope("bert"):
        first = contrib.layers.layer_norm(x, begin_norm_axis=-1, begin_params_axis=-1, scope=None)
        second = contrib.layers.layer_norm(first)
    with v1.variable_scope("bert/encoder"):
        third = contrib.layers.layer_norm(
            second, activation_fn=tf.tanh, trainable=False, outputs_collections=["ends"]
        )
    return {"first": first, "second": second, "third": third}


def layer_norm_options(contrib):
    x = tf.constant(input_values(4, 3, 6))
    named = contrib.layers.layer_norm(x, scope="named", variables_collections=["mine"])
    again = contrib.layers.layer_norm(named, scope="named", reuse=True)
    wide = contrib.layers.layer_norm(x, begin_norm_axis=2, begin_params_axis=1, scope="wide")
    plain = contrib.layers.layer_norm(
        x, center=False, variables_collections={"gamma": ["gammas"], "beta": ["betas"]}
    )
    bare = contrib.layers.layer_norm(x, center=False, scale=False)
    half = contrib.layers.layer_norm(tf.cast(x, tf.float16), scope="half")
    return {
        "again": again,
        "wide": wide,
        "plain": plain,
        "bare": bare,
        "half": tf.cast(half, tf.float32),
    }


def convolutions(contrib):
    layers = contrib.layers
    x = tf.constant(input_values(2, 8, 9, 3))
    first = layers.conv2d(x, 4, 3, stride=2, variables_collections=["mine"])
    second = layers.conv2d(
        first,
        5,
        [3, 2],
        padding="VALID",
        normalizer_fn=layers.batch_norm,
        normalizer_params={"is_training": False},
        weights_regularizer=layers.l2_regularizer(0.1),
    )
    dilated = layers.convolution2d(x, 2, 3, rate=2, activation_fn=None, biases_initializer=None)
    in_row = layers.conv1d(tf.constant(input_values(2, 7, 3)), 2, 3, scope="row")
    solid = layers.conv3d(tf.constant(input_values(1, 4, 4, 4, 2)), 2, 2, stride=2)
    up = layers.conv2d_transpose(x, 2, 3, stride=2)
    valid = layers.conv2d_transpose(x, 2, [4, 3], stride=[2, 1], padding="VALID", scope="valid")
    separable = layers.separable_conv2d(
        x, 4, 3, depth_multiplier=2, weights_regularizer=layers.l1_regularizer(0.1)
    )
    deep = layers.separable_conv2d(
        x, None, [3, 3], stride=2, variables_collections={"weights": ["w"]}
    )
    losses = tf.add_n(v1.get_collection("regularization_losses"))
    return {
        "second": second,
        "dilated": dilated,
        "in_row": in_row,
        "solid": solid,
        "up": up,
        "valid": valid,
        "separable": separable,
        "deep": deep,
        "losses": losses,
    }


def dense_layers(contrib):
    layers = contrib.layers
    x = tf.constant(input_values(4, 6))
    first = layers.fully_connected(x, 5, outputs_collections=["ends"])
    second = layers.fully_connected(
        tf.constant(input_values(2, 3, 6)), 4, activation_fn=tf.tanh, scope="deep"
    )
    third = layers.linear(first, 2, biases_initializer=None)
    again = layers.fully_connected(x, 5, scope="fully_connected", reuse=True)
    normal = layers.fully_connected(
        x, 3, normalizer_fn=layers.layer_norm, weights_regularizer=layers.l2_regularizer(0.5)
    )
    frozen = layers.relu(x, 2, trainable=False, variables_collections={"biases": ["b"]})
    return {
        "first": first,
        "second": second,
        "third": third,
        "again": again,
        "normal": normal,
        "frozen": frozen,
        "losses": tf.stack(v1.get_collection("regularization_losses")),
    }


def _norm_case(**options):
    def case(contrib):
        x = tf.constant(input_values(*options.get("shape", (4, 3, 3, 2))))
        arguments = {key: each for key, each in options.items() if key != "shape"}
        y = contrib.layers.batch_norm(x, decay=0.9, **arguments)
        updates = v1.get_collection("update_ops")
        fetches = {"y": y}
        for at, each in enumerate(updates):
            fetches["update " + str(at)] = getattr(each, "op", each)
        for each in v1.global_variables():
            fetches["then " + each.op.name] = each
        return fetches

    return case


def _named(name, case):
    case.__name__ = name
    return case


BATCH_NORMS = (
    _named("batch_norm", _norm_case()),
    _named("batch_norm_scaled", _norm_case(scale=True, center=False, scope="a/b")),
    _named("batch_norm_inference", _norm_case(is_training=False, scale=True)),
    _named("batch_norm_at_once", _norm_case(updates_collections=None, scale=True)),
    _named("batch_norm_flat", _norm_case(shape=(6, 3), scale=True)),
    _named("batch_norm_three_axes", _norm_case(shape=(4, 5, 3), scale=True)),
    _named("batch_norm_not_fused", _norm_case(fused=False, scale=True)),
    _named("batch_norm_without_bias", _norm_case(zero_debias_moving_mean=True)),
    _named("batch_norm_weighted", _norm_case(batch_weights=[1.0, 2.0, 0.0, 1.0])),
)


def batch_norm_by_tensor(contrib):
    training = v1.placeholder_with_default(True, [])
    x = tf.constant(input_values(4, 3, 3, 2))
    y = contrib.layers.batch_norm(x, is_training=training, decay=0.9)
    z = contrib.layers.batch_norm(x, is_training=training, updates_collections=None, scope="b")
    fetches = {"y": y, "z": z}
    for at, each in enumerate(v1.get_collection("update_ops")):
        fetches["update " + str(at)] = getattr(each, "op", each)
    for each in v1.global_variables():
        fetches["then " + each.op.name] = each
    return fetches


def other_norms(contrib):
    x = tf.constant(input_values(2, 4, 3, 6))
    return {
        "groups": contrib.layers.group_norm(x, groups=3),
        "first": contrib.layers.group_norm(
            x, groups=2, channels_axis=1, reduction_axes=[2, 3], mean_close_to_zero=True
        ),
        "instance": contrib.layers.instance_norm(x),
        "instance_first": contrib.layers.instance_norm(x, data_format="NCHW", scope="n"),
    }


def layers_without_variables(contrib):
    layers = contrib.layers
    x = tf.constant(input_values(2, 4, 5, 6))
    return {
        "max": layers.max_pool2d(x, 2, outputs_collections=["ends"]),
        "mean": layers.avg_pool2d(x, [3, 2], stride=1, padding="SAME"),
        "flat": layers.flatten(x),
        "softmax": layers.softmax(x),
        "kept": layers.dropout(x, 0.7, is_training=False),
        "whole": layers.dropout(x, 1.0),
    }


def layers_in_rows(contrib):
    layers = contrib.layers
    x = tf.constant(input_values(2, 6))
    return {
        "repeated": layers.repeat(x, 2, layers.fully_connected, 3, scope="block"),
        "unnamed": layers.repeat(x, 2, layers.fully_connected, 3),
    }


def scopes_of_arguments(contrib):
    layers, framework = contrib.layers, contrib.framework
    x = tf.constant(input_values(2, 8, 8, 3))
    with framework.arg_scope(
        [layers.conv2d, layers.fully_connected],
        activation_fn=None,
        weights_regularizer=layers.l2_regularizer(0.01),
    ):
        with framework.arg_scope([layers.conv2d], padding="VALID", stride=2) as scope:
            y = layers.conv2d(x, 4, 3)
        z = layers.conv2d(x, 2, 3, activation_fn=tf.nn.relu)
    with framework.arg_scope(scope):
        w = layers.conv2d(x, 2, 3)
    plain = layers.conv2d(x, 2, 3)
    return {
        "y": y,
        "z": z,
        "w": w,
        "plain": plain,
        "losses": tf.stack(v1.get_collection("regularization_losses")),
    }


def regularizers(contrib):
    layers = contrib.layers
    weights = [v1.get_variable(name, [3, 2]) for name in "ab"]
    total = layers.apply_regularization(layers.l2_regularizer(0.3), weights)
    nothing = layers.apply_regularization(layers.l1_regularizer(0.0), weights)
    added = layers.sum_regularizer([layers.l1_regularizer(0.4), None, layers.l2_regularizer(0.0)])
    return {"total": total, "nothing": nothing, "added": added(weights[1])}


def optimize_loss(contrib):
    step = v1.train.get_or_create_global_step()
    weight = v1.get_variable("weight", initializer=tf.constant([0.5, -0.3, 0.2]))
    other = v1.get_variable("other", initializer=tf.constant([0.5, -0.3]))
    loss = tf.reduce_sum(tf.square(weight - 1.0)) + tf.reduce_sum(tf.abs(other))
    train = contrib.layers.optimize_loss(
        loss,
        step,
        0.1,
        "Adam",
        clip_gradients=1.0,
        gradient_multipliers={"other:0": 0.5},
        learning_rate_decay_fn=lambda rate, at: v1.train.exponential_decay(rate, at, 2, 0.5),
        summaries=["loss", "learning_rate", "gradients", "gradient_norm", "global_gradient_norm"],
    )
    return {"loss": train, "then weight": weight, "then other": other, "then step": step}


def optimize_loss_plainly(contrib):
    weight = v1.get_variable("weight", initializer=tf.constant([0.5, -0.3, 0.2]))
    train = contrib.layers.optimize_loss(
        tf.reduce_sum(tf.square(weight)),
        v1.train.get_or_create_global_step(),
        learning_rate=None,
        optimizer=lambda: v1.train.MomentumOptimizer(0.1, 0.9),
        summaries=[],
        name="mine",
        increment_global_step=False,
    )
    return {"loss": train, "then weight": weight}


# Slots and counters keep the values that optimizers give them.
optimize_loss.fill = optimize_loss_plainly.fill = False


def variables_by_scope(contrib):
    framework = contrib.framework
    with v1.variable_scope("a"):
        framework.model_variable("kernel", [2])
        framework.variable("bias", [2], collections=["mine", "mine", "variables"])
        framework.model_variable("state", [2], trainable=False)
    with v1.variable_scope("ab"):
        framework.model_variable("kernel", [2])

    def names(found):
        return tf.constant([each.op.name for each in found] or ["none"])

    return {
        "all": names(framework.get_variables()),
        "a": names(framework.get_variables("a/")),
        "model": names(framework.get_model_variables("a")),
        "trainable": names(framework.get_trainable_variables()),
        "restored": names(framework.get_variables_to_restore(exclude=["ab"])),
        "some": names(framework.get_variables_to_restore(include=["a/", "ab"], exclude=["a/b"])),
    }


CASES = (
    layer_norm,
    layer_norm_options,
    convolutions,
    dense_layers,
    *BATCH_NORMS,
    batch_norm_by_tensor,
    other_norms,
    layers_without_variables,
    layers_in_rows,
    scopes_of_arguments,
    regularizers,
    optimize_loss,
    optimize_loss_plainly,
    variables_by_scope,
)
