"""Batch normalization with the variables of `tf.contrib.layers.batch_norm`."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.compat.contrib.framework.arg_scope import (
    add_arg_scope,
    smart_cond,
    static_value,
)
from tfx_tpu_trainer.compat.contrib.framework.variables import model_variable
from tfx_tpu_trainer.compat.contrib.layers.utils import (
    Activation,
    channels_of,
    check_data_format,
    collect_named_outputs,
    get_variable_collections,
)

v1 = tf.compat.v1
_Moments = tuple[tf.Tensor, tf.Tensor]


@add_arg_scope
def batch_norm(
    inputs: Any,
    decay: float = 0.999,
    center: bool = True,
    scale: bool = False,
    epsilon: float = 0.001,
    activation_fn: Activation = None,
    param_initializers: Mapping[str, Any] | None = None,
    param_regularizers: Mapping[str, Any] | None = None,
    updates_collections: Any = v1.GraphKeys.UPDATE_OPS,
    is_training: Any = True,
    reuse: bool | None = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    batch_weights: Any = None,
    fused: bool | None = None,
    data_format: str = "NHWC",
    zero_debias_moving_mean: bool = False,
    scope: Any = None,
    renorm: bool = False,
    renorm_clipping: Any = None,
    renorm_decay: float = 0.99,
    adjustment: Callable[..., Any] | None = None,
) -> tf.Tensor:
    """Normalizes each channel by the batch's mean and variance in training, else by moving averages.

    Its variables are `beta`, `gamma`, `moving_mean` and `moving_variance` in the variable scope
    `BatchNorm`, `BatchNorm_1` and so on. Behaves like `tf.contrib.layers.batch_norm` in
    TensorFlow 1.15.

    Args:
        inputs: A tensor whose number of channels is known.
        decay: The share of the moving averages that a step keeps. Defaults to 0.999.
        center: Whether to add `beta`. Defaults to `True`.
        scale: Whether to multiply by `gamma`. Defaults to `False`.
        epsilon: Added to the variance. Defaults to 0.001.
        activation_fn: Applied to the output. Defaults to `None`, nothing.
        param_initializers: Initializers by the variables' names. Defaults to `None`.
        param_regularizers: Regularizers of `"beta"` and `"gamma"`. Defaults to `None`.
        updates_collections: The collections of the ops that update the moving averages; `None` to update with each
            output. Defaults to `GraphKeys.UPDATE_OPS`, which the train op has to run.
        is_training: Whether to normalize by the batch: a bool, or a tensor. Defaults to `True`.
        reuse: Whether to reuse the variables of an earlier call; it needs `scope`. Defaults to `None`, the enclosing
            scope's setting.
        variables_collections: Collections of the variables, or a dict of them by name. Defaults to
            `None`.
        outputs_collections: Collections of the output. Defaults to `None`.
        trainable: Whether optimizers update `beta` and `gamma`. Defaults to `True`.
        batch_weights: The weight of each row in mean and variance. Defaults to `None`, all 1.
        fused: Whether to use the fused op, whose moving variance has Bessel's correction; it takes 2 or 4 axes.
            Defaults to `None`: if possible.
        data_format: `"NHWC"` or `"NCHW"`. Defaults to `"NHWC"`.
        zero_debias_moving_mean: Whether to correct the moving mean for its start at 0, with two more variables.
            Defaults to `False`.
        scope: The variable scope. Defaults to `None`, `BatchNorm` with a number if it is taken.
        renorm: Not supported; `False`.
        renorm_clipping: Not used.
        renorm_decay: Not used.
        adjustment: Not supported; `None`.

    Returns:
        A tensor of the shape and type of `inputs`.

    Raises:
        ValueError: If the channels are not known, the data format is neither of the two, or an unsupported argument is
            given.
    """
    del renorm_clipping, renorm_decay
    if renorm or adjustment is not None:
        raise ValueError(
            "batch_norm supports neither renorm nor adjustment; use "
            "tf.compat.v1.layers.batch_normalization with TF_USE_LEGACY_KERAS=1."
        )
    channels_first = check_data_format(data_format, "NHWC", "NCHW")
    inputs = tf.convert_to_tensor(inputs)
    with v1.variable_scope(scope, "BatchNorm", [inputs], reuse=reuse) as variable_scope:
        channels = channels_of(inputs, channels_first)
        rank = inputs.shape.rank
        # TensorFlow 1.15's choice decides the type of a checkpoint's variables: it called the fused op for 2 and 4
        # axes, the core's layer if the arguments allowed it, and its own code for the rest. Only the first two kept
        # float32 variables for 16-bit inputs.
        fuse = fused is not False and batch_weights is None and rank in (2, 4)
        core = batch_weights is None and updates_collections is v1.GraphKeys.UPDATE_OPS
        wide = fuse or (core and not zero_debias_moving_mean)
        small = inputs.dtype.base_dtype in (tf.float16, tf.bfloat16)
        dtype = tf.float32 if wide and small else inputs.dtype.base_dtype

        def variable(name: str, initializer: Any, trainable: bool) -> tf.Variable:
            return model_variable(
                name,
                shape=[channels],
                dtype=dtype,
                initializer=(param_initializers or {}).get(name, initializer),
                regularizer=(param_regularizers or {}).get(name) if trainable else None,
                collections=get_variable_collections(variables_collections, name),
                trainable=trainable,
            )

        ones, zeros = v1.ones_initializer(), v1.zeros_initializer()
        beta = variable("beta", zeros, trainable) if center else None
        gamma = variable("gamma", ones, trainable) if scale else None
        with v1.variable_scope(v1.get_variable_scope()) as whole:
            # The moving averages can't be partitioned, since they are assigned to.
            whole.set_partitioner(None)
            moving_mean = variable("moving_mean", zeros, False)
            moving_variance = variable("moving_variance", ones, False)

        def updates(mean: tf.Tensor, variance: tf.Tensor) -> _Moments:
            return (
                _moved(moving_mean, mean, decay, zero_debias=zero_debias_moving_mean),
                _moved(moving_variance, variance, decay),
            )

        if fuse:
            outputs, mean, variance = _fused(
                inputs,
                gamma,
                beta,
                (moving_mean, moving_variance),
                epsilon,
                data_format,
                is_training,
            )
        else:
            mean, variance = smart_cond(
                is_training,
                lambda: _moments(inputs, batch_weights, channels_first, dtype),
                lambda: (tf.identity(moving_mean), tf.identity(moving_variance)),
            )
            outputs = _normalized(inputs, mean, variance, gamma, beta, epsilon, channels_first)
        if static_value(is_training) is not False:
            if updates_collections is None:
                outputs = smart_cond(
                    is_training,
                    lambda: _after(updates(mean, variance), outputs),
                    lambda: tf.identity(outputs),
                )
            else:
                made = smart_cond(
                    is_training,
                    lambda: updates(mean, variance),
                    lambda: (tf.identity(moving_mean), tf.identity(moving_variance)),
                )
                for update in made:
                    v1.add_to_collections(updates_collections, update)
        outputs.set_shape(inputs.shape)
        if activation_fn is not None:
            outputs = activation_fn(outputs)
        return collect_named_outputs(outputs_collections, variable_scope.name, outputs)


def _fused(
    inputs: tf.Tensor,
    gamma: Any,
    beta: Any,
    moving: tuple[tf.Variable, tf.Variable],
    epsilon: float,
    data_format: str,
    is_training: Any,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the outputs, and the batch's mean and corrected variance."""
    flat = inputs.shape.rank == 2
    channels = moving[0].shape[0]
    wide = inputs
    if flat:
        first = data_format == "NCHW"
        wide = tf.reshape(inputs, [-1, channels, 1, 1] if first else [-1, 1, 1, channels])
    gamma = tf.ones([channels], moving[0].dtype) if gamma is None else gamma
    beta = tf.zeros([channels], moving[0].dtype) if beta is None else beta

    def run(training: bool) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        mean, variance = (None, None) if training else moving
        made = v1.nn.fused_batch_norm(
            wide, gamma, beta, mean, variance, epsilon, data_format, is_training=training
        )
        return made[0], made[1], made[2]

    outputs, mean, variance = smart_cond(is_training, lambda: run(True), lambda: run(False))
    return tf.reshape(outputs, tf.shape(inputs)) if flat else outputs, mean, variance


def _moments(inputs: tf.Tensor, weights: Any, channels_first: bool, dtype: tf.DType) -> _Moments:
    rank = inputs.shape.rank
    axes = [0, *range(2, rank)] if channels_first else list(range(rank - 1))
    if weights is None:
        mean, variance = v1.nn.moments(inputs, axes)
    else:
        by_row = tf.reshape(tf.convert_to_tensor(weights), [-1] + [1] * (rank - 1))
        mean, variance = v1.nn.weighted_moments(inputs, axes, by_row)
    return tf.cast(mean, dtype), tf.cast(variance, dtype)


def _normalized(
    inputs: tf.Tensor,
    mean: Any,
    variance: Any,
    gamma: Any,
    beta: Any,
    epsilon: float,
    channels_first: bool,
) -> tf.Tensor:
    def shaped(values: Any) -> Any:
        if values is None:
            return None
        values = tf.cast(values, inputs.dtype)
        axes = inputs.shape.rank - 2
        return tf.reshape(values, [1, -1] + [1] * axes) if channels_first else values

    return tf.nn.batch_normalization(
        inputs, shaped(mean), shaped(variance), shaped(beta), shaped(gamma), epsilon
    )


def _after(updates: _Moments, outputs: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies(updates):
        return tf.identity(outputs)


def _moved(
    variable: tf.Variable, value: tf.Tensor, decay: float, *, zero_debias: bool = False
) -> tf.Tensor:
    """Moves an average by one step."""
    value = tf.cast(value, variable.dtype.base_dtype)
    if not zero_debias:
        return v1.assign_sub(variable, (variable - value) * (1.0 - decay))
    # The names, the scope's twice, are those of TensorFlow 1.15.
    with v1.variable_scope(variable.op.name, values=[variable, value]):
        biased = v1.get_variable(
            "biased",
            variable.shape,
            value.dtype,
            initializer=v1.zeros_initializer(),
            trainable=False,
        )
        steps = v1.get_variable(
            "local_step", [], value.dtype, initializer=v1.zeros_initializer(), trainable=False
        )
    moved = v1.assign_sub(biased, (biased - value) * (1.0 - decay))
    count = v1.assign_add(steps, 1.0)
    # 1 - decay ** steps is the share of the average that does not come from the initial 0.
    return v1.assign(variable, tf.identity(moved) / (1.0 - tf.pow(decay, tf.identity(count))))
