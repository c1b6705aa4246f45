"""Layer normalization with the variables of `tf.contrib.layers.layer_norm`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.compat.contrib.framework.arg_scope import add_arg_scope
from tfx_tpu_trainer.compat.contrib.framework.variables import model_variable
from tfx_tpu_trainer.compat.contrib.named_outputs import (
    collect_named_outputs,
    get_variable_collections,
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

    Its variables are `beta` and `gamma` in the variable scope `LayerNorm`, `LayerNorm_1` and so on,
    as in the checkpoints of BERT and its kin. Semantics of `tf.contrib.layers.layer_norm` of
    TensorFlow 1.15.

    Args:
        inputs: A tensor of known rank.
        center: Whether to add `beta`. Defaults to `True`.
        scale: Whether to multiply by `gamma`. Defaults to `True`.
        activation_fn: Applied to the output. Defaults to `None`, nothing.
        reuse: Whether the variables are those of an earlier call; it needs `scope`. Defaults to `None`, the enclosing
            scope's setting.
        variables_collections: Collections of the variables, or a dict of them by `"beta"` and
            `"gamma"`. Defaults to `None`.
        outputs_collections: Collections of the output. Defaults to `None`.
        trainable: Whether optimizers update the variables. Defaults to `True`.
        begin_norm_axis: Mean and variance are taken over this axis and all after it; negative
            from the end. Defaults to 1.
        begin_params_axis: `beta` and `gamma` have this axis and all after it, whose sizes must be
            known. Defaults to -1, the last.
        scope: The variable scope. Defaults to `None`, `LayerNorm` with a number if it is taken.

    Returns:
        A tensor of the shape and type of `inputs`.

    Raises:
        ValueError: If the rank or a size of the parameters is not known, or an axis is beyond the
            rank.
    """
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

        def parameter(name: str, initializer: Any) -> tf.Variable:
            return model_variable(
                name,
                shape=shape,
                dtype=inputs.dtype.base_dtype,
                initializer=initializer,
                collections=get_variable_collections(variables_collections, name),
                trainable=trainable,
            )

        beta = parameter("beta", v1.zeros_initializer()) if center else None
        gamma = parameter("gamma", v1.ones_initializer()) if scale else None
        mean, variance = v1.nn.moments(inputs, list(range(first, rank)), keep_dims=True)
        # float16 can't represent the smaller number.
        epsilon = 1e-3 if inputs.dtype.base_dtype == tf.float16 else 1e-12
        outputs = tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, epsilon)
        outputs.set_shape(inputs.shape)
        if activation_fn is not None:
            outputs = activation_fn(outputs)
        return collect_named_outputs(outputs_collections, variable_scope.name, outputs)
