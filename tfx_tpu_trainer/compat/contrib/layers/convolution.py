"""Layers with weights: convolutions and matrix products, with the variables of `tf.contrib.layers`."""

import functools
import inspect
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.compat.contrib.framework.arg_scope import add_arg_scope
from tfx_tpu_trainer.compat.contrib.layers.initializers import xavier_initializer
from tfx_tpu_trainer.compat.contrib.layers.utils import (
    Activation,
    channels_of,
    check_data_format,
    finished,
    several,
    weights_of_layer,
)

v1 = tf.compat.v1
_FORMATS = {3: ("NWC", "NCW"), 4: ("NHWC", "NCHW"), 5: ("NDHWC", "NCDHW")}


@add_arg_scope
def convolution(
    inputs: Any,
    num_outputs: int,
    kernel_size: Any,
    stride: Any = 1,
    padding: str = "SAME",
    data_format: str | None = None,
    rate: Any = 1,
    activation_fn: Activation = tf.nn.relu,
    normalizer_fn: Callable[..., tf.Tensor] | None = None,
    normalizer_params: Mapping[str, Any] | None = None,
    weights_initializer: Any = xavier_initializer(),  # noqa: B008 - makes a function, as contrib did.
    weights_regularizer: Any = None,
    biases_initializer: Any = v1.zeros_initializer(),  # noqa: B008
    biases_regularizer: Any = None,
    reuse: bool | None = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
    conv_dims: int | None = None,
) -> tf.Tensor:
    """Convolves along one, two or three spatial axes, adds biases, and applies an activation.

    Its variables are `weights` and `biases` in the variable scope `Conv`, `Conv_1` and so on.
    Behaves like `tf.contrib.layers.convolution` in TensorFlow 1.15. `conv1d`, `conv2d` and
    `conv3d` take the same arguments.

    Args:
        inputs: A tensor of a batch, spatial axes and channels.
        num_outputs: The number of filters.
        kernel_size: The filters' size: an integer, or one for each spatial axis.
        stride: The step between positions: an integer, or one for each spatial axis. Defaults to 1.
        padding: `"SAME"` or `"VALID"`. Defaults to `"SAME"`.
        data_format: `"NWC"`, `"NHWC"`, `"NDHWC"`, or with `C` after `N`. Defaults to `None`,
            channels last.
        rate: The dilation: an integer, or one for each spatial axis; more than 1 only with a
            stride of 1. Defaults to 1.
        activation_fn: Applied to the output. Defaults to a ReLU; `None` for nothing.
        normalizer_fn: Called instead of adding biases. Defaults to `None`.
        normalizer_params: Its arguments. Defaults to `None`.
        weights_initializer: Makes the initial weights. Defaults to `xavier_initializer()`.
        weights_regularizer: Computes a loss from them. Defaults to `None`.
        biases_initializer: Makes the initial biases; `None` for no biases. Defaults to zeros.
        biases_regularizer: Computes a loss from them. Defaults to `None`.
        reuse: Whether to reuse the variables of an earlier call; it needs `scope`. Defaults to `None`, the enclosing
            scope's setting.
        variables_collections: Collections of the variables, or a dict of them by `"weights"` and
            `"biases"`. Defaults to `None`.
        outputs_collections: Collections of the output. Defaults to `None`.
        trainable: Whether optimizers update the variables. Defaults to `True`.
        scope: The variable scope. Defaults to `None`, `Conv` with a number if it is taken.
        conv_dims: How many spatial axes there must be. Defaults to `None`, any.

    Returns:
        A tensor with the same number of axes.

    Raises:
        ValueError: If the inputs have another number of axes, the channels are not known, or an argument has an invalid
            value.
    """
    given = locals()
    # `given` has the arguments by name, for the functions that all layers share. It must be the first statement, since
    # `locals()` grows later on.
    known = [each for pair in _FORMATS.values() for each in pair]
    channels_first = check_data_format(data_format, *known)
    with v1.variable_scope(scope, "Conv", [inputs], reuse=reuse) as variable_scope:
        inputs = tf.convert_to_tensor(inputs)
        rank = inputs.shape.rank
        if conv_dims is not None and conv_dims + 2 != rank:
            raise ValueError(f"This convolution expects {conv_dims + 2} axes; got {rank}.")
        if rank not in _FORMATS:
            raise ValueError(f"A convolution takes 3, 4 or 5 axes; got {rank}.")
        size = several(kernel_size, rank - 2, "kernel_size")
        channels = channels_of(inputs, channels_first)
        weights = weights_of_layer("weights", [*size, channels, int(num_outputs)], inputs, given)
        outputs = tf.nn.convolution(
            inputs,
            weights,
            strides=several(stride, rank - 2, "stride"),
            padding=padding.upper(),
            data_format=_FORMATS[rank][channels_first],
            dilations=several(rate, rank - 2, "rate"),
        )
        return finished(outputs, int(num_outputs), variable_scope.name, given)


def _of_dimensions(count: int, name: str) -> Callable[..., tf.Tensor]:
    def convolve(*args: Any, **kwargs: Any) -> tf.Tensor:
        return convolution(*args, **{**kwargs, "conv_dims": count})

    *arguments, _ = inspect.signature(convolution).parameters.values()
    convolve.__signature__ = inspect.Signature(arguments)  # type: ignore[attr-defined]
    convolve.__name__ = convolve.__qualname__ = name
    axes = "axis" if count == 1 else "axes"
    convolve.__doc__ = f"Convolves along {count} spatial {axes}; see `convolution`."
    return add_arg_scope(convolve)


convolution1d = conv1d = _of_dimensions(1, "convolution1d")
convolution2d = conv2d = _of_dimensions(2, "convolution2d")
convolution3d = conv3d = _of_dimensions(3, "convolution3d")


@add_arg_scope
def convolution2d_transpose(
    inputs: Any,
    num_outputs: int,
    kernel_size: Any,
    stride: Any = 1,
    padding: str = "SAME",
    data_format: str = "NHWC",
    activation_fn: Activation = tf.nn.relu,
    normalizer_fn: Callable[..., tf.Tensor] | None = None,
    normalizer_params: Mapping[str, Any] | None = None,
    weights_initializer: Any = xavier_initializer(),  # noqa: B008
    weights_regularizer: Any = None,
    biases_initializer: Any = v1.zeros_initializer(),  # noqa: B008
    biases_regularizer: Any = None,
    reuse: bool | None = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
) -> tf.Tensor:
    """Transposes a convolution along two spatial axes: the output has `stride` times the size.

    Its variables are `weights` and `biases` in the variable scope `Conv2d_transpose`,
    `Conv2d_transpose_1` and so on. The arguments are those of `convolution`; `kernel_size` and `stride`
    are an integer or two, and `data_format` is `"NHWC"`, by default, or `"NCHW"`.

    Returns:
        A tensor of four axes.

    Raises:
        ValueError: If the channels are not known, or an argument has an invalid value.
    """
    given = locals()
    channels_first = check_data_format(data_format, "NHWC", "NCHW")
    with v1.variable_scope(scope, "Conv2d_transpose", [inputs], reuse=reuse) as variable_scope:
        inputs = tf.convert_to_tensor(inputs)
        size, steps = several(kernel_size, 2, "kernel_size"), several(stride, 2, "stride")
        weights = weights_of_layer(
            "weights", [*size, int(num_outputs), channels_of(inputs, channels_first)], inputs, given
        )
        first = 2 if channels_first else 1
        dynamic = tf.shape(inputs)
        lengths = [
            _transposed_length(
                inputs.shape[axis] if inputs.shape[axis] is not None else dynamic[axis],
                size[axis - first],
                steps[axis - first],
                padding.upper(),
            )
            for axis in (first, first + 1)
        ]
        shape = [num_outputs, *lengths] if channels_first else [*lengths, num_outputs]
        outputs = tf.nn.conv2d_transpose(
            inputs, weights, [dynamic[0], *shape], steps, padding.upper(), data_format
        )
        known = [None if isinstance(each, tf.Tensor) else each for each in shape]
        outputs.set_shape([inputs.shape[0], *known])
        return finished(outputs, int(num_outputs), variable_scope.name, given)


conv2d_transpose = convolution2d_transpose


def _transposed_length(length: Any, size: int, step: int, padding: str) -> Any:
    # Example: a length of 3, with a kernel of 5 and a stride of 2, becomes 6 with "SAME" and 9 with "VALID".
    return length * step + (max(size - step, 0) if padding == "VALID" else 0)


@add_arg_scope
def separable_convolution2d(
    inputs: Any,
    num_outputs: int | None,
    kernel_size: Any,
    depth_multiplier: int = 1,
    stride: Any = 1,
    padding: str = "SAME",
    data_format: str = "NHWC",
    rate: Any = 1,
    activation_fn: Activation = tf.nn.relu,
    normalizer_fn: Callable[..., tf.Tensor] | None = None,
    normalizer_params: Mapping[str, Any] | None = None,
    weights_initializer: Any = xavier_initializer(),  # noqa: B008
    pointwise_initializer: Any = None,
    weights_regularizer: Any = None,
    biases_initializer: Any = v1.zeros_initializer(),  # noqa: B008
    biases_regularizer: Any = None,
    reuse: bool | None = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
) -> tf.Tensor:
    """Convolves each channel by itself, and then mixes the channels.

    Its variables are `depthwise_weights`, `pointwise_weights` and `biases` in the variable scope
    `SeparableConv2d`, `SeparableConv2d_1` and so on.

    The arguments are those of `convolution`; sizes are an integer or two, and `data_format` is `"NHWC"`, by default, or
    `"NCHW"`. `num_outputs` may be `None` for no mixing, and each channel has `depth_multiplier` outputs before mixing,
    1 by default. `weights_initializer` makes the initial weights of each channel, and `pointwise_initializer`, by
    default the same, those of the mixing. The regularizer computes a loss from both.

    Returns:
        A tensor of four axes.

    Raises:
        ValueError: If the channels are not known, or an argument has an invalid value.
    """
    given = locals()
    channels_first = check_data_format(data_format, "NHWC", "NCHW")
    with v1.variable_scope(scope, "SeparableConv2d", [inputs], reuse=reuse) as variable_scope:
        inputs = tf.convert_to_tensor(inputs)
        channels = channels_of(inputs, channels_first)
        depth = channels * depth_multiplier

        size = several(kernel_size, 2, "kernel_size")
        depthwise = weights_of_layer(
            "depthwise_weights", [*size, channels, depth_multiplier], inputs, given
        )
        steps = several(stride, 2, "stride")
        outputs = v1.nn.depthwise_conv2d(
            inputs,
            depthwise,
            [1, 1, *steps] if channels_first else [1, *steps, 1],
            padding.upper(),
            rate=several(rate, 2, "rate"),
            data_format=data_format,
        )
        if num_outputs is not None:
            mixing = weights_initializer if pointwise_initializer is None else pointwise_initializer
            pointwise = weights_of_layer(
                "pointwise_weights",
                [1, 1, depth, int(num_outputs)],
                inputs,
                {**given, "weights_initializer": mixing},
            )
            outputs = tf.nn.conv2d(outputs, pointwise, 1, "VALID", data_format)
        return finished(
            outputs, depth if num_outputs is None else int(num_outputs), variable_scope.name, given
        )


separable_conv2d = separable_convolution2d


@add_arg_scope
def fully_connected(
    inputs: Any,
    num_outputs: Any,
    activation_fn: Activation = tf.nn.relu,
    normalizer_fn: Callable[..., tf.Tensor] | None = None,
    normalizer_params: Mapping[str, Any] | None = None,
    weights_initializer: Any = xavier_initializer(),  # noqa: B008 - makes a function, as contrib did.
    weights_regularizer: Any = None,
    biases_initializer: Any = v1.zeros_initializer(),  # noqa: B008
    biases_regularizer: Any = None,
    reuse: bool | None = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
) -> tf.Tensor:
    """Multiplies the last axis by `weights`, adds `biases`, and applies an activation.

    Its variables are in the variable scope `fully_connected`, `fully_connected_1` and so on.
    Behaves like `tf.contrib.layers.fully_connected` in TensorFlow 1.15.

    Args:
        inputs: A tensor of two axes or more, the last of known size.
        num_outputs: The size of the output's last axis.
        activation_fn: Applied to the output. Defaults to a ReLU; `None` for nothing.
        normalizer_fn: Called instead of adding biases. Defaults to `None`.
        normalizer_params: Its arguments. Defaults to `None`.
        weights_initializer: Makes the initial weights. Defaults to `xavier_initializer()`.
        weights_regularizer: Computes a loss from them. Defaults to `None`.
        biases_initializer: Makes the initial biases; `None` for no biases. Defaults to zeros.
        biases_regularizer: Computes a loss from them. Defaults to `None`.
        reuse: Whether to reuse the variables of an earlier call; it needs `scope`. Defaults to `None`, the enclosing
            scope's setting.
        variables_collections: Collections of the variables, or a dict of them by `"weights"` and
            `"biases"`. Defaults to `None`.
        outputs_collections: Collections of the output. Defaults to `None`.
        trainable: Whether optimizers update the variables. Defaults to `True`.
        scope: The variable scope. Defaults to `None`, `fully_connected` with a number if it is
            taken.

    Returns:
        A tensor with the axes of `inputs`, the last of size `num_outputs`.

    Raises:
        ValueError: If `num_outputs` is not an integer, or the inputs' rank or last size is not known.
    """
    given = locals()
    if not isinstance(num_outputs, numbers.Integral):
        raise ValueError(f"num_outputs must be an integer; got {num_outputs!r}.")
    with v1.variable_scope(scope, "fully_connected", [inputs], reuse=reuse) as variable_scope:
        inputs = tf.convert_to_tensor(inputs)
        size = channels_of(inputs, channels_first=False)
        if inputs.shape.rank < 2:
            raise ValueError(f"fully_connected needs two axes or more; got shape {inputs.shape}.")
        weights = weights_of_layer("weights", [size, int(num_outputs)], inputs, given)
        if inputs.shape.rank == 2:
            outputs = tf.matmul(inputs, weights)
        else:
            outputs = tf.tensordot(inputs, weights, [[inputs.shape.rank - 1], [0]])
            outputs.set_shape([*inputs.shape[:-1], num_outputs])
        return finished(outputs, int(num_outputs), variable_scope.name, given)


linear = functools.partial(fully_connected, activation_fn=None)
relu = functools.partial(fully_connected, activation_fn=tf.nn.relu)
relu6 = functools.partial(fully_connected, activation_fn=tf.nn.relu6)
elu = functools.partial(fully_connected, activation_fn=tf.nn.elu)
