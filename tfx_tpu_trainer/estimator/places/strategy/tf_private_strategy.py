"""The private names of `tf.distribute` that strategies in a v1 graph cannot do without.

| name | why | if it goes away |
|---|---|---|
| methods of `tf.compat.v1.distribute.StrategyExtended` with an underscore | model_fn is traced once, and its calls of
`tf.distribute` (optimizers sum gradients by it) must add to that one trace: our own strategy implements them | patch
the optimizers, as `from_estimator` does |
| `Strategy._scale_loss_for_estimator_enabled` | makes v1 optimizers take the mean over replicas, as they do in the original's strategies | divide the gradients in `_reduce_to` |
| `StrategyExtended._experimental_distribute_values_from_function` | strategies of `tf.compat.v1.distribute` have no public way to give each replica its own value | refuse them in evaluation |
| `TPUStrategy.extended._device_assignment` | the cores of a replica have no public name once the strategy is made | read them from `TPUConfig` |
| `ops.gradient_registry` | `ReplicaContext.all_reduce` registers a gradient function in each graph, forever, and with it the graph and the strategy | live with some megabytes a session |
| `context.eager_mode` | a strategy runs eagerly, and programs for TensorFlow 1 switch eager execution off for every thread (`disable_v2_behavior()`) | call the functions in a `tf.py_function` of a session, which runs them eagerly |
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tensorflow.python.framework import ops

from tfx_tpu_trainer.estimator._engine.copying.cross_replica_ops import SUM

v1 = tf.compat.v1


def eager_mode() -> contextlib.AbstractContextManager[None]:
    """Returns a context manager in which TensorFlow executes eagerly in this thread."""
    return eager_context.eager_mode()


# How one trace serves all replicas. A strategy calls a function once for each replica, in threads
# that meet where an optimizer merges them (`merge_call`); but model_fn is to be traced once. Here
# the context is TensorFlow's own for a single replica, in which a merge is a plain call, of a
# strategy that claims to have N. A reduction becomes a node, which is a sum in N copies of the
# trace:
#   context.all_reduce("SUM", g)  ->  CrossReplicaSum(g)
# As in the original, v1 optimizers take the mean of the replicas' gradients (the sum where the loss
# was summed with `tf.compat.v1.losses.Reduction.SUM`), and Keras optimizers take the sum.
class TracedStrategy(tf.distribute.Strategy):
    """Replaces a strategy of several replicas while model_fn is traced for all of them at once."""

    _scale_loss_for_estimator: bool

    def __init__(self, replicas: int) -> None:
        super().__init__(_TracedExtended(self, replicas))

    @contextlib.contextmanager
    def tracing(self, replica_id: tf.Tensor) -> Iterator[None]:
        """Makes code in the block see a replica of this strategy."""
        with (
            self.scope(),
            self._scale_loss_for_estimator_enabled(),
            self._cross_shard_optimizers_left_alone(),
            tf.distribute.ReplicaContext(self, replica_id),
        ):
            yield

    @contextlib.contextmanager
    def _cross_shard_optimizers_left_alone(self) -> Iterator[None]:
        """Keeps optimizers inside a CrossShardOptimizer from summing gradients, which it sums itself."""
        wrapper = v1.tpu.CrossShardOptimizer
        methods = {
            name: getattr(wrapper, name) for name in ("compute_gradients", "apply_gradients")
        }
        for name, method in methods.items():
            setattr(wrapper, name, self._left_alone(method))
        try:
            yield
        finally:
            for name, method in methods.items():
                setattr(wrapper, name, method)

    def _left_alone(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            before = self._scale_loss_for_estimator
            self._scale_loss_for_estimator = self.extended.sums_gradients = False
            try:
                return method(*args, **kwargs)
            finally:
                self._scale_loss_for_estimator = self.extended.sums_gradients = before

        return call


class _TracedExtended(v1.distribute.StrategyExtended):
    """The part of `TracedStrategy` for code that knows of distribution."""

    def __init__(self, strategy: tf.distribute.Strategy, replicas: int) -> None:
        super().__init__(strategy)
        self._replicas = replicas
        # Whether gradients, the values reduced to their variable, are summed.
        self.sums_gradients = True

    @property
    def _num_replicas_in_sync(self) -> int:
        return self._replicas

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> tf.Variable:
        kwargs.pop("colocate_with", None)
        return next_creator(**kwargs)

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> tf.Tensor:
        tensor = tf.convert_to_tensor(value)
        is_gradient = isinstance(destinations, tf.Variable)
        if is_gradient and (not self.sums_gradients or tensor.op.type == SUM):
            return tensor
        total = _sum_over_replicas(tensor)
        return total / self._replicas if reduce_op == tf.distribute.ReduceOp.MEAN else total

    def _update(
        self, var: tf.Variable, fn: Callable[..., Any], args: Any, kwargs: Any, group: bool
    ) -> Any:
        return self._update_non_slot(var, fn, (var, *args), kwargs, group)

    def _update_non_slot(
        self, colocate_with: Any, fn: Callable[..., Any], args: Any, kwargs: Any, group: bool
    ) -> Any:
        result = fn(*args, **kwargs)
        return result if group else tf.nest.map_structure(self._local_results, result)

    def _local_results(self, value: Any) -> tuple[Any, ...]:
        return (value,)

    def value_container(self, value: Any) -> Any:
        """Returns the value itself, since there are no containers of several."""
        return value

    def read_var(self, v: tf.Variable) -> tf.Tensor:
        """Reads a variable; the replicas' counts are summed when the value is used."""
        return tf.identity(v)

    def non_slot_devices(self, var_list: Sequence[tf.Variable]) -> tf.Variable:
        """Returns the variable next to which others, except slots, are placed."""
        return var_list[0]

    def _in_multi_worker_mode(self) -> bool:
        return False

    def _get_local_replica_id(self, replica_id_in_sync_group: Any) -> Any:
        return replica_id_in_sync_group

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """Devices of the replicas; the trace has none."""
        return ("",)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """Devices of the variables; the trace has none."""
        return ("",)

    @property
    def experimental_between_graph(self) -> bool:
        """Whether each worker has its own graph."""
        return False

    @property
    def experimental_should_init(self) -> bool:
        """Whether this process initializes variables."""
        return True

    @property
    def should_checkpoint(self) -> bool:
        """Whether this process saves."""
        return True

    @property
    def should_save_summary(self) -> bool:
        """Whether this process writes summaries."""
        return True


def _sum_over_replicas(tensor: tf.Tensor) -> tf.Tensor:
    # The op has no kernel for int64; float64 is exact for any real count.
    if tensor.dtype == tf.int64:
        return tf.cast(v1.tpu.cross_replica_sum(tf.cast(tensor, tf.float64)), tf.int64)
    return v1.tpu.cross_replica_sum(tensor)


def distribute_values(
    strategy: tf.distribute.Strategy, value_fn: Callable[[Any], tf.Tensor]
) -> Any:
    """Makes a value for each replica."""
    return strategy.extended._experimental_distribute_values_from_function(value_fn)


def sum_in_replicas(
    context: tf.distribute.ReplicaContext, addends: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Sums tensors over replicas, in a graph that is not differentiated."""
    sums = tf.nest.flatten(context.all_reduce(tf.distribute.ReduceOp.SUM, list(addends)))
    for name in {tensor.op.get_attr(_GRADIENT) for tensor in sums if _has_gradient(tensor.op)}:
        ops.gradient_registry._registry.pop(name.decode(), None)
    return sums


def cores_per_replica(strategy: tf.distribute.Strategy) -> int:
    """Returns the number of TPU cores of a strategy's replica, or 1 without TPUs."""
    assignment = getattr(strategy.extended, "_device_assignment", None)
    return 1 if assignment is None else assignment.num_cores_per_replica


_GRADIENT = "_gradient_op_type"


def _has_gradient(op: tf.Operation) -> bool:
    return _GRADIENT in op.node_def.attr
