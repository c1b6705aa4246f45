"""Replaces `tf.contrib.layers`, with the same arguments and the same variables."""

from tfx_tpu_trainer.compat.contrib.layers.batch_norm import batch_norm
from tfx_tpu_trainer.compat.contrib.layers.convolution import (
    conv1d,
    conv2d,
    conv2d_transpose,
    conv3d,
    convolution,
    convolution1d,
    convolution2d,
    convolution2d_transpose,
    convolution3d,
    elu,
    fully_connected,
    linear,
    relu,
    relu6,
    separable_conv2d,
    separable_convolution2d,
)
from tfx_tpu_trainer.compat.contrib.layers.initializers import (
    variance_scaling_initializer,
    xavier_initializer,
    xavier_initializer_conv2d,
)
from tfx_tpu_trainer.compat.contrib.layers.normalization import (
    group_norm,
    instance_norm,
    layer_norm,
)
from tfx_tpu_trainer.compat.contrib.layers.optimize_loss import (
    OPTIMIZER_CLS_NAMES,
    OPTIMIZER_SUMMARIES,
    optimize_loss,
    summarize_collection,
    summarize_tensor,
)
from tfx_tpu_trainer.compat.contrib.layers.pooling import (
    avg_pool2d,
    dropout,
    flatten,
    max_pool2d,
    repeat,
    softmax,
)
from tfx_tpu_trainer.compat.contrib.layers.regularizers import (
    apply_regularization,
    l1_regularizer,
    l2_regularizer,
    sum_regularizer,
)

__all__ = [
    "OPTIMIZER_CLS_NAMES",
    "OPTIMIZER_SUMMARIES",
    "apply_regularization",
    "avg_pool2d",
    "batch_norm",
    "conv1d",
    "conv2d",
    "conv2d_transpose",
    "conv3d",
    "convolution",
    "convolution1d",
    "convolution2d",
    "convolution2d_transpose",
    "convolution3d",
    "dropout",
    "elu",
    "flatten",
    "fully_connected",
    "group_norm",
    "instance_norm",
    "l1_regularizer",
    "l2_regularizer",
    "layer_norm",
    "linear",
    "max_pool2d",
    "optimize_loss",
    "relu",
    "relu6",
    "repeat",
    "separable_conv2d",
    "separable_convolution2d",
    "softmax",
    "sum_regularizer",
    "summarize_collection",
    "summarize_tensor",
    "variance_scaling_initializer",
    "xavier_initializer",
    "xavier_initializer_conv2d",
]
