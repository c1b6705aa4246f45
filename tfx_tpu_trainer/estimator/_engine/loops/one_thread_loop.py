"""A loop of steps in which each op runs on one thread, for models whose ops are small.

TensorFlow's kernels share work among the process's threads, some of them even for little work: an optimizer's
fused op shares even 64 numbers. Waking the other threads then takes longer than the step. Only the functions that
tf.data calls can be limited in how many threads an op may use, so the loop is the function of a dataset. Independent
ops still run at the same time.

The graph alone, never a clock, decides whether a model's steps are small: results on one thread and on several may
differ in the last bit, and a training that resumes after a kill must give the bits of one that was never stopped.
"""

import dataclasses
import math
import re
import weakref
from collections.abc import Sequence

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.graph_copy import GraphCopier, makes_handle
from tfx_tpu_trainer.estimator._engine.graph_nodes import functions_of, nodes_called, upstream
from tfx_tpu_trainer.estimator._engine.loops.step_loop import (
    TemplateLoop,
    copy_with_direct_draws,
    steps_in_function,
)
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import LoopEndHook
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate

v1 = tf.compat.v1

# Measured with dense layers and Adam on two CPUs: with up to 7e7 matrix operations a step and
# variables of 70,000 numbers, one thread was 1.2 to 2.6 times as fast; with variables of 260,000
# numbers it was slower.
_MOST_MATRIX_OPERATIONS = 5e7
_MOST_UPDATED_NUMBERS = 1 << 17
_MOST_NUMBERS = 1 << 18

# Assumed for each size that is unknown until there are batches, except the batch's own.
_UNKNOWN_SIZE = 64

# Ops that may take long even on small tensors.
_LONG = re.compile(
    r"Cholesky|Conv|Dilation|Eig|Einsum|FFT|GRU|LRN|LSTM|MatrixInverse|MatrixSolve|"
    r"MatrixTriangular|Pool|Qr|RNN|Resize|Svd|TopK|Unique\w*WithCounts"
)
# Ops that a function of tf.data can't run in a session, or runs differently from the model.
_FOREIGN = re.compile(
    r"Collective|CrossReplica|PartitionedCall|PyFunc|Recv|RemoteCall|Send|SymbolicGradient|TPU|"
    r"Variable(V2)?$|Xla"
)

# Ops whose handles are the same in each session call.
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

# Ops that take no time, since they pass on their input.
_FREE = frozenset({"Const", "ExpandDims", "Identity", "ReadVariableOp", "Reshape", "Squeeze"})

_MATRIX_PRODUCTS = {
    "BatchMatMul": "adj_x",
    "BatchMatMulV2": "adj_x",
    "BatchMatMulV3": "adj_x",
    "MatMul": "transpose_a",
}


def is_small(step: Sequence[tf.Tensor | tf.Operation]) -> bool:
    """Returns whether a model's steps are small, and so faster with each op on one thread."""
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
    # Shapes in functions are unknown, so functions must not have matrix products.
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
    """Returns the largest static batch size of a graph's datasets; infinite if there is none."""
    # The size is the second input, except where a map's captured inputs come before it.
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
    """Returns a tensor's number of elements, with guesses for unknown sizes."""
    if tensor.shape.rank is None or tensor.dtype in (tf.resource, tf.variant):
        return 0
    sizes = tensor.shape.as_list()
    # An unknown first dimension is assumed to be the batch dimension.
    unknown = [rows, *[_UNKNOWN_SIZE] * (len(sizes) - 1)]
    return math.prod(other if size is None else size for size, other in zip(sizes, unknown))


# Error messages contain it: it must differ from the name of the input's get_next.
_NAME = "steps_on_one_thread"

_CALLS = 1 << 62


@dataclasses.dataclass(frozen=True)
class OneThreadLoop(TemplateLoop):
    """A loop of the template's own steps, each op of which runs on one thread."""

    # Prepares the loop in a session. A second run would make random ops draw the same numbers again.
    start: tf.Operation
    _ready: weakref.WeakSet[v1.Session] = dataclasses.field(
        default_factory=weakref.WeakSet, compare=False
    )

    def prepare(self, session: v1.Session) -> None:
        """Prepares the loop in a session, once."""
        if session not in self._ready:
            session.run(self.start)
            self._ready.add(session)


class LoopReadyHook(LoopEndHook):
    """Prepares a loop in each session, for the calls that fetch it."""

    def __init__(self, loop: TemplateLoop) -> None:
        self._loop = loop

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        self._loop.prepare(session)


# How ops are kept on one thread. The problem: how many threads an op may use is a setting of the
# process, except for functions that tf.data calls. The idea: a dataset whose element n is the loss
# after the n-th call of the loop,
#   range(2**62).map(lambda _: while_loop(step, number=read(steps_in_call)))
# with `max_intra_op_parallelism=1`. A session call writes the number of steps to a variable of the
# loop and draws one element, which runs them. Everything that could draw ahead (prefetch,
# autotuning, default optimizations) is off: an element drawn early would run steps too many.
# The invariant: the iterator is made once in a session (`OneThreadLoop.prepare`). Made again it
# would have new kernels, whose random ops would draw the same numbers once more.
def build_one_thread_loop(template: ModelTemplate) -> OneThreadLoop:
    """Makes a loop of the template's own steps that runs each op on one thread."""
    copier = GraphCopier(template.graph)
    dtype = template.loss_dtype

    def step(number: tf.Tensor) -> tf.Tensor:
        made = [template.train_op, template.loss]
        train_op, loss = copy_with_direct_draws(copier, made, name="step")
        with tf.control_dependencies([train_op]):
            return tf.identity(loss)

    with v1.device("/device:CPU:0"):
        count = v1.placeholder_with_default(tf.constant(1), shape=(), name="steps_ahead")
        # In no collection, and neither saved nor initialized: each call writes it first.
        steps = tf.raw_ops.VarHandleOp(
            dtype=tf.int32, shape=(), shared_name=template.graph.unique_name("steps_in_call", False)
        )

        def all_steps(call: tf.Tensor) -> tf.Tensor:
            made = tf.raw_ops.ReadVariableOp(resource=steps, dtype=tf.int32)
            made.set_shape(())
            # Not `repeat_step`: in a session, a dataset's function may not call another function.
            return steps_in_function(step, made, loss_dtype=dtype, stop_if_not_finite=True)

        function = tf.function(all_steps, autograph=False).get_concrete_function(
            tf.TensorSpec((), tf.int64)
        )
        element = {"output_types": [dtype], "output_shapes": [tf.TensorShape(())]}
        calls = tf.raw_ops.MapDataset(
            input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.range(_CALLS)),
            other_arguments=function.captured_inputs,
            f=function,
            **element,
        )
        iterator = tf.raw_ops.IteratorV2(
            shared_name=template.graph.unique_name(_NAME, False), container="", **element
        )
        start = tf.raw_ops.MakeIterator(dataset=_one_thread_each(calls, dtype), iterator=iterator)
        write = tf.raw_ops.AssignVariableOp(resource=steps, value=count)
        with tf.control_dependencies([write]):
            (loss,) = tf.raw_ops.IteratorGetNext(iterator=iterator, name=_NAME, **element)
    with tf.control_dependencies([loss]):
        return OneThreadLoop(count, loss, v1.train.get_global_step().read_value(), start)


def _one_thread_each(calls: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    options = tf.data.Options()
    options.threading.max_intra_op_parallelism = 1
    # Draw no element before it is fetched.
    options.autotune.enabled = False
    options.experimental_optimization.inject_prefetch = False
    options.experimental_optimization.apply_default_optimizations = False
    dataset = tf.data.experimental.from_variant(calls, tf.TensorSpec((), dtype))
    return tf.data.experimental.to_variant(dataset.with_options(options))
