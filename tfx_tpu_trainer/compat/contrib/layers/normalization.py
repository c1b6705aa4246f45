"""Normalizes each example by itself: as a whole, by groups of channels, or by channel."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.compat.contrib.framework.arg_scope import add_arg_scope
from tfx_tpu_trainer.compat.contrib.layers.utils import (
    Activation,
    channels_of,
    check_data_format,
    collect_named_outputs,
    parameter,
)

v1 = tf.compat.v1


@add_arg_scope
def layer_norm(
    inputs: Any,
    center: bool = True,
    scale: bool = True,
    activation_fn: Callable[[tf.Tensor], tf.Tensor] | None = None,
    reuse: bool | None = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    begin_norm_axis: int = 1,
    begin_params_axis: int = -1,
    scope: Any = None,
) -> tf.Tensor:
    """Normalizes each row to mean 0 and variance 1, then scales and shifts it.

    Its variables are `beta` and `gamma` in the variable scope `LayerNorm`, `LayerNorm_1` and so on, as in the
    checkpoints of BERT and similar models. Behaves like `tf.contrib.layers.layer_norm` in TensorFlow 1.15.

    Args:
        inputs: A tensor of known rank.
        center: Whether to add `beta`. Defaults to `True`.
        scale: Whether to multiply by `gamma`. Defaults to `True`.
        activation_fn: Applied to the output. Defaults to `None`, nothing.
        reuse: Whether to reuse the variables of an earlier call; it needs `scope`. Defaults to `None`, the enclosing
            scope's setting.
        variables_collections: Collections of the variables, or a dict of them by `"beta"` and
            `"gamma"`. Defaults to `None`.
        outputs_collections: Collections of the output. Defaults to `None`.
        trainable: Whether optimizers update the variables. Defaults to `True`.
        begin_norm_axis: Mean and variance are taken over this axis and all after it; a negative one counts from the
            end. Defaults to 1.
        begin_params_axis: `beta` and `gamma` have this axis and all after it, whose sizes must be
            known. Defaults to -1, the last.
        scope: The variable scope. Defaults to `None`, `LayerNorm` with a number if it is taken.

    Returns:
        A tensor of the shape and type of `inputs`.

    Raises:
        ValueError: If the rank or a size of the parameters is not known, or an axis is beyond the
            rank.
    """
    given = locals()
    with v1.variable_scope(scope, "LayerNorm", [inputs], reuse=reuse) as variable_scope:
        inputs = tf.convert_to_tensor(inputs)
        rank = inputs.shape.rank
        if rank is None:
            raise ValueError(f"layer_norm needs inputs of known rank; {inputs.name} has none.")
        first = begin_norm_axis + rank if begin_norm_axis < 0 else begin_norm_axis
        if max(begin_params_axis, first) >= rank:
            raise ValueError(
                f"begin_params_axis ({begin_params_axis}) and begin_norm_axis ({begin_norm_axis}) must be less "
                f"than the rank of the inputs ({rank})."
            )
        shape = inputs.shape[begin_params_axis:]
        if not shape.is_fully_defined():
            raise ValueError(
                f"layer_norm needs to know the sizes of the axes from {begin_params_axis} on; {inputs.name} has "
                f"the shape {inputs.shape}."
            )

        moments = v1.nn.moments(inputs, list(range(first, rank)), keep_dims=True)
        # float16 can't represent the smaller number.
        epsilon = 1e-3 if inputs.dtype.base_dtype == tf.float16 else 1e-12
        return _finished(
            inputs, moments, inputs, shape, variable_scope.name, {**given, "epsilon": epsilon}
        )


@add_arg_scope
def group_norm(
    inputs: Any,
    groups: int = 32,
    channels_axis: int = -1,
    reduction_axes: Sequence[int] = (-3, -2),
    center: bool = True,
    scale: bool = True,
    epsilon: float = 1e-6,
    activation_fn: Activation = None,
    param_initializers: Mapping[str, Any] | None = None,
    reuse: bool | None = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
    mean_close_to_zero: bool = False,
) -> tf.Tensor:
    """Normalizes groups of channels of each example; `beta` and `gamma` are by channel.

    Its variables are in the variable scope `GroupNorm`, `GroupNorm_1` and so on. Behaves like
    `tf.contrib.layers.group_norm` in TensorFlow 1.15.

    Args:
        inputs: A tensor whose sizes along the channels and the reduced axes are known.
        groups: The number of groups, a divisor of the channels. Defaults to 32.
        channels_axis: The axis of the channels. Defaults to -1, the last.
        reduction_axes: The other axes that mean and variance are taken over. Defaults to
            (-3, -2).
        center: Whether to add `beta`. Defaults to `True`.
        scale: Whether to multiply by `gamma`. Defaults to `True`.
        epsilon: Added to the variance. Defaults to 1e-6.
        activation_fn: Applied to the output. Defaults to `None`, nothing.
        param_initializers: Initializers by `"beta"` and `"gamma"`. Defaults to `None`.
        reuse: Whether to reuse the variables of an earlier call; it needs `scope`. Defaults to `None`, the enclosing
            scope's setting.
        variables_collections: Collections of the variables, or a dict of them by name. Defaults to
            `None`.
        outputs_collections: Collections of the output. Defaults to `None`.
        trainable: Whether optimizers update the variables. Defaults to `True`.
        scope: The variable scope. Defaults to `None`.
        mean_close_to_zero: Whether to compute the variance in one pass. Defaults to `False`.

    Returns:
        A tensor of the shape of `inputs`.

    Raises:
        ValueError: If the rank or a size is not known, an axis does not exist, or `groups` does not divide the
            channels.
    """
    given = locals()
    inputs = tf.convert_to_tensor(inputs)
    rank = inputs.shape.rank
    if rank is None:
        raise ValueError(f"group_norm needs inputs of known rank; {inputs.name} has none.")
    if not -rank <= channels_axis < rank:
        raise ValueError(f"channels_axis must be an axis of {rank}; got {channels_axis}.")
    channels_axis %= rank
    channels = inputs.shape[channels_axis]
    axes = [axis + rank if axis < 0 else axis for axis in reduction_axes]
    if channels is None or any(not 0 <= axis < rank or inputs.shape[axis] is None for axis in axes):
        raise ValueError(
            f"group_norm needs to know the sizes of axes {[channels_axis, *axes]}; the shape is {inputs.shape}."
        )
    if channels_axis in axes:
        raise ValueError(f"The channels' axis {channels_axis} can't be in reduction_axes {axes}.")
    if groups > channels or channels % groups:
        raise ValueError(
            f"{channels} channels can't be divided into {groups} groups of equal size."
        )
    sizes = [tf.shape(inputs)[at] if each is None else each for at, each in enumerate(inputs.shape)]
    split = [groups, channels // groups]
    grouped = tf.reshape(inputs, [*sizes[:channels_axis], *split, *sizes[channels_axis + 1 :]])
    # Splitting the channels' axis moves the axes behind it by one. Example: NHWC with 4 channels in
    # 2 groups is [N, H, W, 2, 2], and mean and variance are taken over the axes 4, 1 and 2.
    within = [channels_axis + 1, *(axis + (axis > channels_axis) for axis in axes)]
    by_channel = [1] * channels_axis + split + [1] * (rank - 1 - channels_axis)
    with v1.variable_scope(scope, "GroupNorm", [grouped], reuse=reuse) as variable_scope:
        if mean_close_to_zero:
            mean = tf.reduce_mean(grouped, within, keepdims=True)
            variance = tf.reduce_mean(tf.square(grouped), within, keepdims=True) - tf.square(mean)
        else:
            mean, variance = v1.nn.moments(grouped, within, keep_dims=True)
        return _finished(
            grouped,
            (mean, variance),
            inputs,
            [channels],
            variable_scope.name,
            given,
            by_channel=by_channel,
            sizes=sizes,
        )


@add_arg_scope
def instance_norm(
    inputs: Any,
    center: bool = True,
    scale: bool = True,
    epsilon: float = 1e-6,
    activation_fn: Activation = None,
    param_initializers: Mapping[str, Any] | None = None,
    reuse: bool | None = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    data_format: str = "NHWC",
    scope: Any = None,
) -> tf.Tensor:
    """Normalizes each channel of each example.

    Its variables are `beta` and `gamma` in the variable scope `InstanceNorm` and so on. The arguments are those of
    `group_norm`, except for groups and axes; `data_format` is `"NHWC"`, by default, or `"NCHW"`.

    Returns:
        A tensor of the shape of `inputs`.

    Raises:
        ValueError: If the channels are not known, or the data format is neither of the two.
    """
    given = locals()
    channels_first = check_data_format(data_format, "NHWC", "NCHW")
    inputs = tf.convert_to_tensor(inputs)
    channels = channels_of(inputs, channels_first)
    rank = inputs.shape.rank
    with v1.variable_scope(scope, "InstanceNorm", [inputs], reuse=reuse) as variable_scope:
        axes = list(range(2, rank)) if channels_first else list(range(1, rank - 1))
        return _finished(
            inputs,
            v1.nn.moments(inputs, axes, keep_dims=True),
            inputs,
            [channels],
            variable_scope.name,
            given,
            by_channel=[1, -1] + [1] * (rank - 2) if channels_first else None,
        )


def _finished(
    values: tf.Tensor,
    moments: tuple[tf.Tensor, tf.Tensor],
    inputs: tf.Tensor,
    shape: Sequence[int],
    scope: str,
    given: Mapping[str, Any],
    *,
    by_channel: Sequence[int] | None = None,
    sizes: Sequence[Any] | None = None,
) -> tf.Tensor:
    """Normalizes values, scales and shifts them, restores the inputs' shape, and activates and collects them."""
    initializers = given.get("param_initializers") or {}

    def variable(name: str, initializer: Any) -> tf.Tensor:
        made = parameter(
            name,
            shape,
            inputs,
            initializer=initializers.get(name, initializer),
            regularizer=None,
            collections=given["variables_collections"],
            trainable=given["trainable"],
        )
        return made if by_channel is None else tf.reshape(made, by_channel)

    beta = variable("beta", v1.zeros_initializer()) if given["center"] else None
    gamma = variable("gamma", v1.ones_initializer()) if given["scale"] else None
    outputs = tf.nn.batch_normalization(values, *moments, beta, gamma, given["epsilon"])
    outputs = outputs if sizes is None else tf.reshape(outputs, sizes)
    outputs.set_shape(inputs.shape)
    if given["activation_fn"] is not None:
        outputs = given["activation_fn"](outputs)
    return collect_named_outputs(given["outputs_collections"], scope, outputs)
