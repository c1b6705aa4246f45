"""Embedding tables beside the replicas of a `tf.distribute` strategy: looked up before a step, trained after it."""

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
    """The tables of a model's embeddings while a strategy makes its steps.

    In the session the tables and their slots are variables of the trace, with the names of any
    other run; that is what checkpoints hold. The strategy's steps keep them wherever embeddings
    are looked up: these methods hand them over, and fetch them for whoever reads them.

    A step calls `send` on the host; `receive`, the model and `train` in each replica; and
    `finish` on the host.

    Attributes:
        handles: Handles of the variables that stand here instead of in the replicas.
        received: Tensors of the trace that a replica gets from here.
        sent: Tensors of the trace that a replica brings; none outside of training.
        returned: How many tensors `train` returns.
    """

    returned = 0

    def __init__(self, lookups: Lookups, *, replicas: int) -> None:
        """Makes the optimizers' slots, in the trace's graph, which must be the default one."""
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
        """Takes the variables' first values, by name of the handle; called in eager mode."""

    @abc.abstractmethod
    def send(self, copier: GraphCopier, batches: Sequence[Batch]) -> list[list[tf.Tensor]]:
        """Looks the replicas' ids up, or asks for that; called in a function, on the host."""

    @abc.abstractmethod
    def receive(self, passed: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns what stands for `received`; called in a replica."""

    @abc.abstractmethod
    def train(self, sent: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Takes what stands for `sent`, and trains or leaves that to `finish`; called in a replica."""

    @abc.abstractmethod
    def finish(
        self,
        copier: GraphCopier,
        batches: Sequence[Batch],
        returned: Sequence[Sequence[tf.Tensor]],
    ) -> None:
        """Trains the tables where `train` has not; called in a function, on the host."""

    @abc.abstractmethod
    def value(self, handle: str) -> np.ndarray:
        """Returns the value of a variable by the name of its handle; called in eager mode."""

    @abc.abstractmethod
    def step(self) -> None:
        """Is called before steps of training are made, in eager mode."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Frees the variables; called in eager mode."""


class HostTables(StrategyTables):
    """Tables in the memory of this host, for replicas on its own devices.

    They train as on emulated cores: the gradients of all replicas are summed for each row before
    the optimizer acts.
    """

    def __init__(self, lookups: Lookups, *, replicas: int) -> None:
        """Makes the optimizers' slots; see `StrategyTables`."""
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
        """Looks up what the replicas receive."""
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
        """Returns what was looked up."""
        return list(passed)

    def train(self, sent: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Hands the gradients on to `finish`."""
        return list(sent)

    def finish(
        self,
        copier: GraphCopier,
        batches: Sequence[Batch],
        returned: Sequence[Sequence[tf.Tensor]],
    ) -> None:
        """Sums the replicas' gradients and makes the optimizers' step."""
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
