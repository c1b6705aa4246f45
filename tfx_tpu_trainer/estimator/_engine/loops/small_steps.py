"""Which models' steps are so small that threads which share an op's work cost more than they gain.

The graph alone decides, never a clock: one thread and several may differ in the last bit, and a training that continues
after a kill must end with the bits of one that was never stopped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.graph_copy import makes_handle
from tfx_tpu_trainer.estimator._engine.graph_nodes import functions_of, nodes_called, upstream

v1 = tf.compat.v1

# Measured with dense layers and Adam on two cores: up to 7e7 operations of matrices a step, and
# variables of 70,000 numbers, one thread was 1.2 to 2.6 times as fast, and slower from variables
# of 260,000 numbers on.
_MOST_MATRIX_OPERATIONS = 5e7
_MOST_UPDATED_NUMBERS = 1 << 17
_MOST_NUMBERS = 1 << 18

# What a size is taken for that is not known before there are batches, but for that of a batch.
_UNKNOWN_SIZE = 64

# Ops of which even a small one may be long.
_LONG = re.compile(
    r"Cholesky|Conv|Dilation|Eig|Einsum|FFT|GRU|LRN|LSTM|MatrixInverse|MatrixSolve|"
    r"MatrixTriangular|Pool|Qr|RNN|Resize|Svd|TopK|Unique\w*WithCounts"
)
# Ops that a function of tf.data can't run in a session, or not as the model does.
_FOREIGN = re.compile(
    r"Collective|CrossReplica|PartitionedCall|PyFunc|Recv|RemoteCall|Send|SymbolicGradient|TPU|"
    r"Variable(V2)?$|Xla"
)

# Handles that are the same in each session call.
_LASTING = frozenset(
    {
        "HashTableV2",
        "IteratorV2",
        "MutableDenseHashTableV2",
        "MutableHashTableV2",
        "OneShotIterator",
        "SummaryWriter",
        "VarHandleOp",
    }
)

# Ops that hand on what they are given.
_FREE = frozenset({"Const", "ExpandDims", "Identity", "ReadVariableOp", "Reshape", "Squeeze"})

_MATRIX_PRODUCTS = {
    "BatchMatMul": "adj_x",
    "BatchMatMulV2": "adj_x",
    "BatchMatMulV3": "adj_x",
    "MatMul": "transpose_a",
}


def is_small(step: Sequence[tf.Tensor | tf.Operation]) -> bool:
    """Tells whether a model's steps are faster with each op on one thread."""
    if any(device.device_type != "CPU" for device in tf.config.list_physical_devices()):
        return False
    graph = step[0].graph
    ops = list(upstream(step))
    if not all(_runs_in_dataset(op) and _may_be_short(op.type) for op in ops):
        return False
    rows = _rows_of_batch(graph)
    products = sum(_matrix_operations(op, rows) for op in ops if op.type in _MATRIX_PRODUCTS)
    if products > _MOST_MATRIX_OPERATIONS or not all(_has_few_numbers(op, rows) for op in ops):
        return False
    # The shapes in functions are not known.
    functions = functions_of(graph.as_graph_def().library)
    kinds = {op.type for op in ops} & functions.keys()
    kinds |= {node.op for node in nodes_called((op.node_def for op in ops), functions)}
    return all(
        _may_be_short(kind) and kind not in _MATRIX_PRODUCTS and kind not in functions
        for kind in kinds
    )


def _may_be_short(kind: str) -> bool:
    return not (_LONG.search(kind) or _FOREIGN.search(kind))


def _has_few_numbers(op: tf.Operation, rows: float) -> bool:
    if op.type in _FREE:
        return True
    updates = op.type.startswith("ResourceApply")
    numbers = [_numbers(tensor, rows) for tensor in (op.inputs if updates else op.outputs)]
    return max(numbers, default=0) <= (_MOST_UPDATED_NUMBERS if updates else _MOST_NUMBERS)


def _runs_in_dataset(op: tf.Operation) -> bool:
    if op.device:
        device = tf.DeviceSpec.from_string(op.device)
        if device.device_type not in (None, "CPU") or device.device_index not in (None, 0):
            return False
        if device.job is not None or device.task:
            return False
    return op.type in _LASTING if makes_handle(op) else True


def _rows_of_batch(graph: tf.Graph) -> float:
    """Returns the largest batch size that datasets of a graph name; infinite where none does."""
    named = [
        tf.get_static_value(op.inputs[-3 if op.type.startswith("MapAnd") else 1])
        for op in graph.get_operations()
        if "BatchDataset" in op.type
    ]
    return max((float(size) for size in named if size is not None), default=math.inf)


def _matrix_operations(op: tf.Operation, rows: float) -> float:
    shape = op.inputs[0].shape
    if shape.rank is None:
        return math.inf
    transposed = op.get_attr(_MATRIX_PRODUCTS[op.type])
    summed = shape.as_list()[-2 if transposed else -1]
    unknown = rows if transposed else _UNKNOWN_SIZE
    return 2 * _numbers(op.outputs[0], rows) * (unknown if summed is None else summed)


def _numbers(tensor: tf.Tensor, rows: float) -> float:
    """Returns how many numbers a tensor has, as far as that is known."""
    if tensor.shape.rank is None or tensor.dtype in (tf.resource, tf.variant):
        return 0
    sizes = tensor.shape.as_list()
    unknown = [rows, *[_UNKNOWN_SIZE] * (len(sizes) - 1)]
    return math.prod(other if size is None else size for size, other in zip(sizes, unknown))
