"""The variables of a template under a `tf.distribute` strategy."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf


class StrategyVariables:
    """A `tf.Variable` of the strategy for each variable of the template that a step uses."""

    # Each replica has its own copy and updates it with its own op; sums over replicas keep the copies equal. If a
    # variable depends on a replica's own rows, such as the moving averages of a batch norm, the first replica's copy is
    # read, as on TPU cores. Local variables, those of metrics, count each replica's rows and are added up when they are
    # read. A strategy with a single copy of each variable (`CentralStorageStrategy`) differs: all replicas read it, and
    # the first one changes it for all, by the sums over replicas; local variables count all replicas' rows by
    # themselves.

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        handles: Sequence[tf.Tensor],
        values: Mapping[str, np.ndarray],
        *,
        summed: frozenset[str],
    ) -> None:
        """Makes the variables; called in eager mode."""
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
        """Returns name of a handle -> the calling replica's handle."""
        return {name: variable.handle for name, variable in self._variables.items()}

    def unchanged_by(self, replica: int) -> frozenset[str]:
        """Returns the names of the handles whose variables a replica leaves to the first one."""
        if not self._is_shared or replica == 0:
            return frozenset()
        return frozenset(self._variables) - self._summed

    def value(self, name: str) -> np.ndarray:
        """Returns the value of a variable; called in eager mode."""
        value = self._variables[name].read_value().numpy()
        if self._is_shared or name not in self._summed:
            return value
        # Each replica counts from the initial value, which must count only once: four replicas that each add 1 to 10
        # read as 44, but the result is 14.
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


def check_are_variables(handles: Sequence[tf.Tensor]) -> None:
    """Rejects handles of anything but variables, such as tables."""
    others = [handle.op for handle in handles if handle.op.type != "VarHandleOp"]
    if others:
        raise ValueError(
            "Under a tf.distribute strategy a model can read only variables, but this one also "
            f"reads {[f'{op.name} ({op.type})' for op in others]}. Look tables up in input_fn."
        )
