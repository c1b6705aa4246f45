"""Embedding tables outside of a `tf.distribute` strategy's replicas: looked up before a step, trained after it."""

import abc
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.graph_copy import GraphCopier
from tfx_tpu_trainer.estimator.places.host_functions import trace_host_function
from tfx_tpu_trainer.estimator.places.place import Lookups

v1 = tf.compat.v1

Batch = Mapping[str, tf.Tensor]
"""Name of a placeholder of the trace -> a replica's tensor."""


class StrategyTables(abc.ABC):
    """The tables of a model's embeddings while a strategy runs its steps.

    In the session, and so in checkpoints, the tables and their slots are variables of the trace, with the same names as
    in any other run. During the strategy's steps they are where embeddings are looked up.

    A step calls `send` on the host; `receive`, the model and `train` in each replica; and `finish` on the host.

    Attributes:
        handles: Handles of the variables that are here instead of in the replicas.
        received: Tensors of the trace that a replica receives.
        sent: Tensors of the trace that a replica sends; none outside of training.
        returned: The number of tensors that `train` returns.
    """

    returned = 0

    def __init__(self, lookups: Lookups, *, replicas: int) -> None:
        """Makes the optimizers' slots in the default graph, which must be that of the trace."""
        self._lookups = lookups
        known = {variable.ref() for variable in v1.global_variables()}
        self._update = trace_host_function(
            lookups.update, cores=replicas, broadcast=False, full=False
        )
        slots = [each for each in v1.global_variables() if each.ref() not in known]
        self.handles: Sequence[tf.Tensor] = [
            variable.handle for variable in (*lookups.tables.values(), *slots)
        ]
        self.received: Sequence[tf.Tensor] = list(lookups.received.values())
        self.sent: Sequence[tf.Tensor] = (
            [*lookups.sent.values(), lookups.step] if lookups.sent else []
        )

    @abc.abstractmethod
    def start(self, values: Mapping[str, np.ndarray]) -> None:
        """Takes the variables' initial values, by name of the handle; called in eager mode."""

    @abc.abstractmethod
    def send(self, copier: GraphCopier, batches: Sequence[Batch]) -> list[list[tf.Tensor]]:
        """Looks up the replicas' ids, or starts that; called in a function, on the host."""

    @abc.abstractmethod
    def receive(self, passed: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the values of `received`; called in a replica."""

    @abc.abstractmethod
    def train(self, sent: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Trains on the values of `sent`, or leaves that to `finish`; called in a replica."""

    @abc.abstractmethod
    def finish(
        self, copier: GraphCopier, batches: Sequence[Batch], returned: Sequence[Sequence[tf.Tensor]]
    ) -> None:
        """Trains the tables unless `train` has; called in a function, on the host."""

    @abc.abstractmethod
    def value(self, handle: str) -> np.ndarray:
        """Returns the value of a variable by the name of its handle; called in eager mode."""

    @abc.abstractmethod
    def step(self) -> None:
        """Prepares for steps of training; called in eager mode."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Frees the variables; called in eager mode."""


class HostTables(StrategyTables):
    """Tables in this host's memory, for replicas on its own devices; they train as on emulated cores."""

    def __init__(self, lookups: Lookups, *, replicas: int) -> None:
        super().__init__(lookups, replicas=replicas)
        self.returned = len(self.sent)

    def start(self, values: Mapping[str, np.ndarray]) -> None:
        """Makes the variables on this host."""
        with tf.device("/device:CPU:0"):
            self._variables = {
                handle.name: tf.Variable(values[handle.name], trainable=False)
                for handle in self.handles
            }

    def send(self, copier: GraphCopier, batches: Sequence[Batch]) -> list[list[tf.Tensor]]:
        """Looks up the embeddings that the replicas receive."""
        with tf.device("/device:CPU:0"):
            return [
                copier.copy_replica(
                    self.received,
                    replaced={**batch, **self._own_handles()},
                    replica=number,
                    name="look_up",
                )
                for number, batch in enumerate(batches)
            ]

    def receive(self, passed: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the looked-up embeddings."""
        return list(passed)

    def train(self, sent: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Passes the gradients to `finish`."""
        return list(sent)

    def finish(
        self, copier: GraphCopier, batches: Sequence[Batch], returned: Sequence[Sequence[tf.Tensor]]
    ) -> None:
        """Sums the replicas' gradients for each row, then runs the optimizers."""
        if self._update is None:
            return
        own, sent = self._own_handles(), [tensor.name for tensor in self.sent]
        with tf.device("/device:CPU:0"):
            of_replicas = [
                copier.copy_replica(
                    self._update.tensors,
                    replaced={**batch, **own, **dict(zip(sent, tensors, strict=True))},
                    replica=number,
                    name="table_gradients",
                )
                for number, (batch, tensors) in enumerate(zip(batches, returned, strict=True))
            ]
            gathered = [tf.concat(parts, axis=0) for parts in zip(*of_replicas)]
            self._update.run(copier, gathered, name="table_update", handles=own)

    def value(self, handle: str) -> np.ndarray:
        """Returns a variable's value."""
        return self._variables[handle].numpy()

    def step(self) -> None:
        """Does nothing: the variables are always up to date."""

    def stop(self) -> None:
        """Frees the variables."""
        del self._variables

    def _own_handles(self) -> dict[str, tf.Tensor]:
        return {name: variable.handle for name, variable in self._variables.items()}
