"""The private TensorFlow names that the engine and the exports cannot do without.

| name | why | if it goes away |
|---|---|---|
| `CheckpointSaverHook._listeners` | a model's own saver hook must call the listeners given to `train()`, and takes listeners in its constructor only; ours calls them when a thread has written a checkpoint | refuse listeners with the model's own hook; write checkpoints while the training waits |
| `CheckpointSaverHook._timer` | early checkpoints, after 60 s and 120 s, and those that an evaluation awaits are due by a timer that its constructor does not take | all intervals are equal; a new session after each evaluation |
| `FileWriterCache._cache` | each writer in it holds a thread and a file descriptor, and nothing public lists them | they stay open for each model_dir until the process ends |
| `CheckpointSaverHook._set_steps_per_run` | a session call runs a loop of steps, and the hook must see that a step within it is due | save at the next loop's end |
| `CheckpointSaverHook._save_graph_def` | the hook prints the graph in Python, a third of the time to a large model's first step; protobuf's own printer prints the same graph faster | the hook prints it |
| `training_util._get_or_create_global_step_read` | a saver hook fetches this reading of the global step; a session makes an executor of the whole graph for each other one, 0.1 s for a large model | fetch the variable |
| `iterator_ops._IteratorSaveable` | makes a `tf.compat.v1.train.Saver` of iterators by their handles, with the keys that the original's CheckpointInputPipelineHook wrote | `make_saveable_from_iterator`, where the iterator object is at hand |
| `FuncGraph.capture` | copies of a template in a function read the handles of the surrounding graph; `tf.identity` of a handle would hide its shape | capture by a dummy op |
| `Tensor._USE_EQUALITY` | whether `==` compares tensors by value, on which `import_graph_def` fails under control dependencies; the functions that switch it are public | `import_graph_def` within a separate function |
| `tpu_function.tpu_shard_context`, `get_tpu_context` | `CrossShardOptimizer` reads the number of replicas from it, and it has no public alias | `tf.compat.v1.tpu.shard` around the trace |
| `ObjectGraphView`, `TrackableObjectGraph` | what `Scaffold(saver=tf.train.Checkpoint(...))` saves, under which keys; TensorFlow reads the same when it finalizes a scaffold | leave these savers to the Scaffold; read object-based checkpoints by their keys only |
| `Graph._unsafe_unfinalize` | a session finalizes its graph when it opens; the loop that runs ahead is built when steps are first left to it, so it neither delays the first step nor is in the graph written to the model's folder | build the loop before the session |
| `Graph._group_lock`, `GroupLock._ready` | adding an op takes this lock, and so does a table's `__del__`; a lock that a thread can't take twice waits forever when Python's collector finds a table of the graph just then | adding an op hangs, once in many runs |
| `autograph.core.config.CONVERSION_RULES` | AutoGraph leaves the code of `keras` alone, and so did the original; it does not know `tf_keras`, the same code under a new name, and converting that takes seconds of each trace | traces take longer |
| `Operation._update_input`, `_remove_all_control_inputs`, `_add_control_inputs`, `_set_attr` | `CrossReplicaSum` has no CPU kernel; in a template that runs in place, its consumers must be rewired, and calls of functions with a sum need other functions | clone the template without these nodes |
| `Operation._get_control_flow_context` | an op within a loop or branch of version 1 control flow can't be replaced by one outside of it | keep ops that have an `Enter` or `Switch` before them |
| `tpu._TPUInferenceContext` | TPU embedding columns look for it to learn that they serve, and then look ids up on the CPU | embedding columns cannot be exported for TPU; everything else can |
| `tpu.prune_unconnected_ops_from_xla` | variables and placeholders that nothing reads must not reach the TPU compiler | clear the `_tpu_replicate` attribute in the GraphDef |
| `tpu_replication.outside_compilation_impl`, `OutsideCompilationV2Context`, `_OUTSIDE_COMPILATION_ATTR` | `tf.compat.v1.tpu.outside_compilation` marks ops inside of `tpu.replicate` only, and a model is traced before it is replicated | require `host_call` in place of outside_compilation |
| `xla_sharding.Sharding` | the op that annotates a tensor with its sharding has no public name | leave the sharding of inputs to the compiler |
| `config.is_op_determinism_enabled` | only the switch itself is public; an evaluation must know it, as `tf.timestamp()` fails while it is on | always read the clock in Python |
| `kernels.get_registered_kernels_for_op` | TensorFlow optimizes a graph only where it can place each node, and a template may have nodes that no device here can run | place only what is fetched, not optimized |
| `op_def_registry.get` | a NodeDef lacks the fixed types of its op, such as the string of `StringLength` | read the definitions from a MetaGraphDef's `stripped_op_list` |
| `session._python_session_create_counter` | a fork of a process that has had a session waits forever for that session's threads; nothing public counts sessions | the fork waits |
| `export_output.ExportOutput` | a spec's `export_outputs` may hold the original's classes too, which libraries import from TensorFlow | only ours are accepted |
| `export_output.ClassificationOutput`, `RegressionOutput`, `PredictOutput` | their tensors, to serve them from a TPU | the same |
| `Optimizer._resource_apply_sparse_duplicate_indices` and the methods of `AdamOptimizer` in `_METHODS` | subclasses override these to apply gradients; nothing public chooses the fused op for a gradient of rows | update op by op |
"""

import contextlib
import contextvars
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2
from tensorflow.python.autograph.core import config as autograph
from tensorflow.python.checkpoint import graph_view
from tensorflow.python.client import session as client_session
from tensorflow.python.compiler.xla.experimental import xla_sharding
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.framework import kernels, op_def_registry
from tensorflow.python.framework.config import (
    is_op_determinism_enabled as is_op_determinism_enabled,
)
from tensorflow.python.saved_model.model_utils import export_output as export_output
from tensorflow.python.tpu import tpu, tpu_function, tpu_replication
from tensorflow.python.training import training_util

v1 = tf.compat.v1


def let_collected_tables_add_ops(graph: tf.Graph) -> None:
    """Lets a thread add an op to the graph while it adds another."""
    # A table that was made in the graph, such as Transform's, adds an op when it is deleted.
    # Python's collector may delete it at any time, even while an op is being added.
    graph._group_lock._ready = threading.Condition(threading.RLock())


def cached_event_writers() -> list[tuple[str, v1.summary.FileWriter]]:
    """Returns the folders that `FileWriterCache` has a writer for, each with its writer."""
    cache = v1.summary.FileWriterCache
    with cache._lock:
        return [(str(folder), writer) for folder, writer in cache._cache.items()]


@contextlib.contextmanager
def importing(destination: tf.Graph) -> Iterator[None]:
    """Lets a GraphDef be imported into a graph under construction."""
    # In a function, `import_graph_def` looks for its control dependencies (a `TPUStrategy` has one
    # around each replica) among the inputs of every node, by `==`: TensorFlow 2 would compare an
    # operation with a tensor by value, and fails.
    if not (destination.building_function and tf.Tensor._USE_EQUALITY):
        yield
        return
    v1.disable_tensor_equality()
    try:
        yield
    finally:
        v1.enable_tensor_equality()


@contextlib.contextmanager
def keras_code_unconverted() -> Iterator[None]:
    """Makes AutoGraph leave the code of tf_keras alone, as it does that of keras, but not users' layers."""
    # AutoGraph remembers which functions it has not converted, after the block as well.
    rules = autograph.CONVERSION_RULES
    autograph.CONVERSION_RULES = (*rules, autograph.DoNotConvert("tf_keras"))
    try:
        yield
    finally:
        autograph.CONVERSION_RULES = rules


def replace_consumers_input(op: tf.Operation, old: tf.Tensor, new: tf.Tensor) -> None:
    """Makes `op` read `new` wherever it read `old`. The graph must not have run yet."""
    for index, tensor in enumerate(op.inputs):
        if tensor is old:
            op._update_input(index, new)


def is_in_v1_control_flow(op: tf.Operation) -> bool:
    """Returns whether an op was made within a loop or branch of version 1 control flow."""
    return op._get_control_flow_context() is not None


def replace_control_inputs(op: tf.Operation, controls: Sequence[tf.Operation]) -> None:
    """Makes `op` wait for `controls` and nothing else. The graph must not have run yet."""
    op._remove_all_control_inputs()
    op._add_control_inputs(list(controls))


def set_attribute(op: tf.Operation, name: str, value: Any) -> None:
    """Changes an attribute of `op`. The graph must not have run yet."""
    op._set_attr(name, value)


def add_checkpoint_listeners(
    hook: v1.train.CheckpointSaverHook, listeners: Sequence[v1.train.CheckpointSaverListener]
) -> None:
    """Adds listeners to those that a saver hook calls."""
    known = hook._listeners
    known.extend(listener for listener in listeners if listener not in known)


def join_checkpoint_listeners(
    hook: v1.train.CheckpointSaverHook,
    join: Callable[
        [Sequence[v1.train.CheckpointSaverListener]], list[v1.train.CheckpointSaverListener]
    ],
) -> None:
    """Replaces a saver hook's listeners."""
    hook._listeners = join(tuple(hook._listeners))


def timer_of(hook: v1.train.CheckpointSaverHook) -> Any:
    """Returns the timer of a saver hook."""
    return hook._timer


def set_timer(hook: v1.train.CheckpointSaverHook, timer: Any) -> None:
    """Replaces the timer of a saver hook, whose intervals are equal."""
    hook._timer = timer


def replicas(number: int) -> contextlib.AbstractContextManager[None]:
    """Sets the number of replicas that code traced in the block sees."""
    return tpu_function.tpu_shard_context(number)


def number_of_replicas() -> int:
    """Returns the number of replicas that `replicas` has set in this thread; 1 outside of it."""
    return tpu_function.get_tpu_context().number_of_shards or 1


def sessions_made() -> int:
    """Returns how many sessions this process, and those from which it was forked, have made."""
    return client_session._python_session_create_counter.get_cell().value()


def read_global_step() -> tf.Tensor:
    """Returns the reading of the default graph's global step that a `CheckpointSaverHook` fetches."""
    # A session makes an executor of the whole graph for each set of fetches (0.1 s for a large model); equal fetches
    # share one.
    return training_util._get_or_create_global_step_read()


def set_steps_per_run(hook: v1.train.CheckpointSaverHook, steps: int) -> None:
    """Sets the steps of a session call for a saver hook."""
    hook._set_steps_per_run(steps)


def set_writes_graph(hook: v1.train.CheckpointSaverHook, writes: bool) -> None:
    """Sets whether a saver hook writes the graph's text, and .meta files with checkpoints."""
    hook._save_graph_def = writes


@contextlib.contextmanager
def growing(graph: tf.Graph) -> Iterator[None]:
    """Lets ops be added to a finalized graph, between two calls of its session."""
    graph._unsafe_unfinalize()
    try:
        with graph.as_default():
            yield
    finally:
        graph.finalize()


def capture(graph: tf.Graph, tensor: tf.Tensor) -> tf.Tensor:
    """Makes a tensor of an outer graph readable in a function's graph."""
    is_function = hasattr(graph, "capture")
    return graph.capture(tensor) if is_function else tensor


def saveables_of_iterators(*, policy: int) -> list[Any]:
    """Returns the objects with which a v1 saver writes the iterators of the default graph."""
    return [
        iterator_ops._IteratorSaveable(
            iterator, iterator.name, tf.data.experimental.ExternalStatePolicy(policy)
        )
        for iterator in v1.get_collection(iterator_ops.GLOBAL_ITERATORS)
    ]


def saveables_of_objects(checkpoint: tf.train.Checkpoint) -> list[Any]:
    """Returns the objects with which a v1 saver writes what a tf.train.Checkpoint would."""
    return graph_view.ObjectGraphView(checkpoint).frozen_saveable_objects()


def object_graph_keys(serialized: bytes) -> dict[str, str]:
    """Returns name of a variable -> its key in an object-based checkpoint."""
    graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(serialized)
    attributes = [attribute for node in graph.nodes for attribute in node.attributes]
    return {attribute.full_name: attribute.checkpoint_key for attribute in attributes}


@contextlib.contextmanager
def inference_context() -> Iterator[None]:
    """Marks the ops made in the block as those of a model that serves on a TPU, for TPU embedding columns."""
    context = tpu._TPUInferenceContext("tpu_inference", check_ops=False)
    context.Enter()
    try:
        yield
    finally:
        context.Exit()


def prune_unconnected_ops(graph: tf.Graph) -> None:
    """Takes variables and placeholders that nothing reads out of the TPU computation of `graph`."""
    tpu.prune_unconnected_ops_from_xla(graph)


def op_definition(name: str) -> Any | None:
    """Returns the OpDef of an op type, or `None` if this TensorFlow lacks it."""
    return op_def_registry.get(name)


@functools.cache
def has_kernel(name: str) -> bool:
    """Returns whether a device of this process can run an op type."""
    devices = {device.device_type for device in tf.config.list_physical_devices()} | {"DEFAULT"}
    found = kernels.get_registered_kernels_for_op(name).kernel
    return any(kernel.device_type in devices for kernel in found)


def partitioned_input(
    parts: Sequence[tf.Tensor], counts: Sequence[int], sharding: bytes
) -> tf.Tensor:
    """Makes an input of a TPU's program from the parts for its devices."""
    whole = tf.raw_ops.TPUPartitionedInputV2(inputs=list(parts), partition_dims=list(counts))
    set_attribute(whole.op, "_XlaSharding", v1.AttrValue(s=sharding))
    return whole


def with_sharding(tensor: tf.Tensor, sharding: Any) -> tf.Tensor:
    """Annotates a tensor with how the devices of a replica share it."""
    return xla_sharding.Sharding(proto=sharding).apply_to_tensor(tensor, use_sharding_op=True)


OUTSIDE_MARK: str = tpu_replication._OUTSIDE_COMPILATION_ATTR

# Numbers for the clusters of this thread's trace; `None` outside of one.
_clusters: contextvars.ContextVar[Iterator[int] | None] = contextvars.ContextVar(
    "outside_compilation_clusters", default=None
)


@contextlib.contextmanager
def marking_outside_compilation() -> Iterator[None]:
    """Makes `tf.compat.v1.tpu.outside_compilation` mark this thread's ops as it does inside `tpu.replicate`."""
    # One cluster for each call; a call inside another belongs to the outer one.
    _take_outside_compilation()
    token = _clusters.set(itertools.count())
    try:
        yield
    finally:
        _clusters.reset(token)


def kept_outside(computation: Callable[..., Any], *args: Any) -> Any:
    """Calls `tf.compat.v1.tpu.outside_compilation` inside `marking_outside_compilation`, elsewhere the function itself."""
    if _clusters.get() is None:
        # TensorFlow would warn that the functions of an export are not in a TPU computation.
        return computation(*args)
    return v1.tpu.outside_compilation(computation, *args)


def mark_outside(op: tf.Operation, cluster: str) -> None:
    """Marks an op as `tf.compat.v1.tpu.outside_compilation` does."""
    op._set_attr(OUTSIDE_MARK, v1.AttrValue(s=cluster.encode()))


@functools.cache
def _take_outside_compilation() -> None:
    # Replaced for the life of the process: the public functions, which programs may hold by other names, look this one
    # up. Outside of a trace it calls TensorFlow's.
    original = tpu_replication.outside_compilation_impl

    def outside_compilation(
        is_map: bool, computation: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        clusters = _clusters.get()
        if clusters is None:
            return original(is_map, computation, *args, **kwargs)
        context = tpu_replication.OutsideCompilationV2Context(
            str(next(clusters)), is_map_outside_compilation=is_map
        )
        token = _clusters.set(None)
        context.Enter()
        try:
            return computation(*args, **kwargs)
        finally:
            context.Exit()
            _clusters.reset(token)

    tpu_replication.outside_compilation_impl = outside_compilation


# The method that `tables_updated_in_one_op` replaces.
_METHOD = "_resource_apply_sparse_duplicate_indices"
# A subclass that overrides one of these has its own updates.
_METHODS = (
    "_apply_sparse_shared",
    "_resource_apply_dense",
    "_resource_apply_sparse",
    "_resource_scatter_add",
)

_lock = threading.Lock()
_users = 0


@contextlib.contextmanager
def tables_updated_in_one_op() -> Iterator[None]:
    """Makes Adam apply gradients of rows in one op instead of some twenty, in all threads, equal up to rounding."""
    # Even for a gradient of only the looked-up rows, Adam updates a whole table: the moments of all rows decay, and all
    # rows move. It does so op by op, each over the whole table; and since some ops change rows in place, TensorFlow
    # copies a variable for each op that reads it. A gradient of the table's shape takes one op and one pass, as on a
    # TPU, where `CrossShardOptimizer` sums gradients of that shape only.
    global _users
    adam = v1.train.AdamOptimizer
    with _lock:
        # Adam inherits the method, unless a program has replaced it.
        if _METHOD not in vars(adam):
            setattr(adam, _METHOD, _apply_rows)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users and vars(adam).get(_METHOD) is _apply_rows:
                delattr(adam, _METHOD)


def _apply_rows(
    self: v1.train.AdamOptimizer, grad: tf.Tensor, handle: tf.Variable, indices: tf.Tensor
) -> tf.Operation:
    """Replaces the method of `tf.compat.v1.train.Optimizer`."""
    adam = v1.train.AdamOptimizer
    if any(getattr(type(self), name) is not getattr(adam, name) for name in _METHODS):
        return getattr(super(adam, self), _METHOD)(grad, handle, indices)
    rows = handle.shape[0]
    if rows is None:
        rows = tf.shape(handle)[0]
    # A row that was looked up several times gets the sum of its gradients, as in Adam itself.
    summed = tf.math.unsorted_segment_sum(grad, indices, rows)
    return self._resource_apply_dense(summed, handle)
