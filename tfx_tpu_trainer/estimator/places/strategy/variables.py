"""The variables of a template under a `tf.distribute` strategy."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf


class StrategyVariables:
    """A `tf.Variable` of the strategy for each variable of the template that a step touches.

    Each replica has its own copy and updates it with its own op: sums over replicas keep them
    equal. What only sees a replica's own rows, such as the moving averages of a batch norm, is
    the first replica's when it is read, as on TPU cores. Local variables, those of metrics, are
    the exception: they count what each replica saw and are added up when they are read.

    A strategy that has a single copy of each variable (`CentralStorageStrategy`) is another
    matter: all replicas read it, and the first one changes it for all, by the sums over replicas;
    local variables count what all replicas saw by themselves.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        handles: Sequence[tf.Tensor],
        values: Mapping[str, np.ndarray],
        *,
        summed: frozenset[str],
    ) -> None:
        """Makes the variables; to be called in eager mode."""
        self._strategy = strategy
        self._first_values = dict(values)
        self._summed = summed
        self._variables = {handle.name: self._make(handle) for handle in handles}
        several = strategy.num_replicas_in_sync > 1
        self._is_shared = several and not any(
            isinstance(variable, tf.distribute.DistributedValues)
            for variable in self._variables.values()
        )

    def local_handles(self) -> dict[str, tf.Tensor]:
        """Returns name of a handle -> the handle of the replica that asks."""
        return {name: variable.handle for name, variable in self._variables.items()}

    def unchanged_by(self, replica: int) -> frozenset[str]:
        """Returns the names of the handles whose variables a replica leaves to the first one."""
        if not self._is_shared or replica == 0:
            return frozenset()
        return frozenset(self._variables) - self._summed

    def value(self, name: str) -> np.ndarray:
        """Returns the value of a variable; to be called in eager mode."""
        value = self._variables[name].read_value().numpy()
        if self._is_shared or name not in self._summed:
            return value
        # Every replica counts from the first value, and that counts once.
        # Four replicas that each count 1 on top of 10 read as 44; 14 is meant.
        surplus = self._strategy.num_replicas_in_sync - 1
        return value - surplus * self._first_values[name]

    def _make(self, handle: tf.Tensor) -> tf.Variable:
        kinds = tf.VariableSynchronization, tf.VariableAggregation
        synchronization, aggregation = (
            (kinds[0].ON_READ, kinds[1].SUM)
            if handle.name in self._summed
            else (kinds[0].AUTO, kinds[1].ONLY_FIRST_REPLICA)
        )
        with self._strategy.scope():
            return tf.Variable(
                self._first_values[handle.name],
                name=handle.op.name,
                dtype=tf.as_dtype(handle.op.get_attr("dtype")),
                trainable=False,
                synchronization=synchronization,
                aggregation=aggregation,
            )
