"""XLA's ops for which TensorFlow has a kernel for CPUs, each with NumPy's result for the same input.

`CASES`: op type -> what is traced of a tensor of the shape (2, 4), and the same in NumPy. Where an op
has several outputs, the case puts them into one list.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops as ops
from tensorflow.compiler.tf2xla.python import xla
from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.python.framework import function

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3) - 5
IMAGE = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
KERNEL = np.array([[1.0, -2], [3, 0.5]], np.float32).reshape(1, 1, 2, 2)
MODULE = b"""module { func.func @main(%a: tensor<2x4xf32>) -> tensor<2x4xf32> {
  %0 = stablehlo.add %a, %a : tensor<2x4xf32>
  return %0 : tensor<2x4xf32> } }"""

_DOT = xla_data_pb2.DotDimensionNumbers(
    lhs_contracting_dimensions=[1], rhs_contracting_dimensions=[0]
)
_ROWS = xla_data_pb2.GatherDimensionNumbers(
    offset_dims=[1], collapsed_slice_dims=[0], start_index_map=[0], index_vector_dim=1
)
_INTO_ROWS = xla_data_pb2.ScatterDimensionNumbers(
    update_window_dims=[1],
    inserted_window_dims=[0],
    scatter_dims_to_operand_dims=[0],
    index_vector_dim=1,
)
_CONV = xla_data_pb2.ConvolutionDimensionNumbers(
    input_batch_dimension=0,
    input_feature_dimension=1,
    input_spatial_dimensions=[2, 3],
    kernel_output_feature_dimension=0,
    kernel_input_feature_dimension=1,
    kernel_spatial_dimensions=[2, 3],
    output_batch_dimension=0,
    output_feature_dimension=1,
    output_spatial_dimensions=[2, 3],
)


@function.Defun(tf.float32, tf.float32)
def _add(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    return a + b


@function.Defun(tf.float32, tf.float32)
def _less(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    return a < b


@function.Defun(tf.float32, tf.float32)
def _not_less(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    return a >= b


@function.Defun(tf.float32)
def _is_small(a: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(a) < 1000.0


@function.Defun(tf.float32)
def _twice(a: tf.Tensor) -> tf.Tensor:
    return a * 2.0


def _image(x: tf.Tensor) -> tf.Tensor:
    return x[0, 0] * IMAGE


def _conv(x: tf.Tensor) -> tf.Tensor:
    return ops.xla_conv(
        _image(x),
        KERNEL,
        [1, 1],
        [[0, 0], [0, 0]],
        [1, 1],
        [1, 1],
        1,
        _CONV.SerializeToString(),
        b"",
    )


def _conv_v2(x: tf.Tensor) -> tf.Tensor:
    return xla.conv(_image(x), KERNEL, [1, 1], [[0, 0], [0, 0]], [1, 1], [1, 1], _CONV)


def _convolved(x: np.ndarray) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(x[0, 0] * IMAGE[0, 0], (2, 2))
    return np.einsum("ijkl,kl->ij", windows, KERNEL[0, 0])[None, None]


def _scattered(x: np.ndarray) -> np.ndarray:
    made = x.copy()
    made[1] += x[0]
    return made


def _updated(x: np.ndarray) -> np.ndarray:
    made = x.copy()
    made[1, 1:3] = x[0, :2]
    return made


def _selected(x: np.ndarray) -> np.ndarray:
    """Puts 10 where the greater of each two neighbours is; the first of equal ones."""
    made = np.zeros_like(x)
    for row in range(2):
        for start in (0, 2):
            made[row, start + np.argmax(x[row, start : start + 2])] = 10
    return made


def _doubled_until_large(x: np.ndarray) -> np.ndarray:
    while x.sum() < 1000:
        x = x * 2
    return x


def _eigen(x: tf.Tensor) -> tf.Tensor:
    values, vectors = xla.self_adjoint_eig(tf.matmul(x, x, transpose_b=True), True, 30, 1e-7)
    return tf.matmul(vectors * values, vectors, transpose_b=True)


def _singular(x: tf.Tensor) -> tf.Tensor:
    s, u, v = xla.svd(x, 100, 1e-7)
    return tf.matmul(u * s, v[:, :2], transpose_b=True)


def _bits(x: tf.Tensor) -> tf.Tensor:
    """The state after drawing, and whether what was drawn spreads over all numbers."""
    del x
    state = tf.constant([1, 2], tf.uint64)
    after, drawn = xla.rng_bit_generator(1, state, [4096], tf.uint32)
    again = xla.rng_bit_generator(1, state, [4096], tf.uint32)[1]
    mean = tf.reduce_mean(tf.cast(drawn, tf.float64)) / 2.0**32
    facts = [tf.reduce_all(tf.equal(drawn, again)), tf.abs(mean - 0.5) < 0.02, after[1] > 2]
    return tf.cast(tf.stack(facts), tf.float32)


Case = tuple[Callable[[tf.Tensor], Any], Callable[[np.ndarray], Any]]

CASES: dict[str, Case] = {
    "XlaBroadcastHelper": (
        lambda x: ops.xla_broadcast_helper(x, x[0], [1]).rhs_output,
        lambda x: x[:1],
    ),
    "XlaCallModule": (
        lambda x: ops.xla_call_module(
            [x], version=5, module=MODULE, Tout=[x.dtype], Sout=[[2, 4]], platforms=["CPU"]
        )[0],
        lambda x: x + x,
    ),
    "XlaConv": (_conv, _convolved),
    "XlaConvV2": (_conv_v2, _convolved),
    "XlaDequantize": (
        lambda x: ops.xla_dequantize(
            tf.cast(x[:1, :1], tf.uint32), 0.0, 255.0, "MIN_COMBINED", False
        ),
        # Four bytes in each number, the highest first, as bfloat16.
        lambda x: [[0.0, 0.0, 0.0, np.floor(x[0, 0])]],
    ),
    "XlaDot": (
        lambda x: ops.xla_dot(x, WEIGHTS, _DOT.SerializeToString(), b""),
        lambda x: x @ WEIGHTS,
    ),
    "XlaDotV2": (lambda x: xla.dot_general(x, WEIGHTS, _DOT), lambda x: x @ WEIGHTS),
    "XlaDynamicSlice": (
        lambda x: xla.dynamic_slice(x, tf.constant([1, 1]), [1, 2]),
        lambda x: x[1:2, 1:3],
    ),
    "XlaDynamicUpdateSlice": (
        lambda x: xla.dynamic_update_slice(x, x[:1, :2], tf.constant([1, 1])),
        _updated,
    ),
    "XlaEinsum": (
        lambda x: ops.xla_einsum(x, WEIGHTS, "ab,bc->ca"),
        lambda x: np.einsum("ab,bc->ca", x, WEIGHTS),
    ),
    "XlaGather": (
        lambda x: xla.gather(x, tf.constant([[1], [0], [1]]), _ROWS, [1, 4]),
        lambda x: x[[1, 0, 1]],
    ),
    "XlaKeyValueSort": (
        lambda x: tf.stack(xla.key_value_sort(x[0], x[1])),
        lambda x: x[:, np.argsort(x[0])],
    ),
    "XlaOptimizationBarrier": (lambda x: xla.optimization_barrier(x)[0], lambda x: x),
    "XlaPad": (
        lambda x: xla.pad(x, tf.constant(7.0), [1, 0], [0, 1], [0, 0]),
        lambda x: np.pad(x, [(1, 0), (0, 1)], constant_values=7),
    ),
    "XlaReduce": (
        lambda x: xla.reduce(x, tf.constant(3.0), [0], _add),
        lambda x: 3 + x.sum(axis=0),
    ),
    "XlaReducePrecision": (
        lambda x: xla.reduce_precision(x * 1.001, 8, 7),
        lambda x: (x * np.float32(1.001)).astype(tf.bfloat16.as_numpy_dtype).astype(np.float32),
    ),
    "XlaReduceWindow": (
        lambda x: xla.reduce_window(x, 0.0, _add, [1, 2]),
        lambda x: x[:, :-1] + x[:, 1:],
    ),
    "XlaRngBitGenerator": (_bits, lambda x: [1, 1, 1]),
    "XlaScatter": (
        lambda x: xla.scatter(x, tf.constant([[1]]), x[:1], _add, _INTO_ROWS),
        _scattered,
    ),
    "XlaSelectAndScatter": (
        lambda x: ops.xla_select_and_scatter(
            x, [1, 2], [1, 2], [[0, 0], [0, 0]], tf.fill([2, 2], 10.0), 0.0, _not_less, _add
        ),
        _selected,
    ),
    "XlaSelfAdjointEig": (_eigen, lambda x: x @ x.T),
    "XlaSharding": (lambda x: xla.sharding(x), lambda x: x),
    "XlaSort": (lambda x: xla.sort(x), lambda x: np.sort(x)),
    "XlaSvd": (_singular, lambda x: x),
    "XlaVariadicReduce": (
        lambda x: ops.xla_variadic_reduce([x], [tf.constant(0.0)], [1], _add)[0],
        lambda x: x.sum(axis=1),
    ),
    "XlaVariadicReduceV2": (
        lambda x: xla.variadic_reduce([x], [tf.constant(0.0)], [1], _add)[0],
        lambda x: x.sum(axis=1),
    ),
    "XlaVariadicSort": (
        lambda x: ops.xla_variadic_sort([x], 1, _less, False)[0],
        lambda x: np.sort(x),
    ),
    "XlaWhile": (lambda x: ops.xla_while([x], _is_small, _twice)[0], _doubled_until_large),
}
