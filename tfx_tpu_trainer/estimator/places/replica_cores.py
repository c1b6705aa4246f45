"""The cores of a TPU that one replica is spread over: which they are, and what of the input each gets.

The original has an infeed queue for each core and enqueues its part of a tensor there. Here a part is
an input of the core's program.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.graph_nodes import upstream
from tfx_tpu_trainer.estimator.places import shardings

v1 = tf.compat.v1


class CutVariable(NamedTuple):
    """A variable that the cores of a replica share.

    TensorFlow's passes cut a variable by what reads it: the variable itself, with its own annotation,
    stands outside of the program.

    Attributes:
        variable: The op that makes its handle in the traced graph.
        sharding: Its OpSharding.
    """

    variable: tf.Operation
    sharding: Any

    def read(self, handle: tf.Tensor) -> tf.Tensor:
        """Reads it, inside of a program."""
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=self.variable.get_attr("dtype"))
        value.set_shape(tf.TensorShape(self.variable.get_attr("shape")))
        return tf_private.with_sharding(value, self.sharding)

    def keep(self, handle: tf.Tensor) -> tf.Operation:
        """Cuts it for a whole program, also where an op changes it without reading it."""
        return tf.raw_ops.AssignVariableOp(resource=handle, value=self.read(handle))


def cut_variables(nodes: Iterable[tf.Tensor | tf.Operation]) -> dict[str, CutVariable]:
    """Returns the variables that a model has cut, of those that some nodes use."""
    ops = list(upstream(nodes))
    found = shardings.variable_shardings([op.node_def for op in ops])
    return {op.outputs[0].name: CutVariable(op, found[op.name]) for op in ops if op.name in found}


@dataclasses.dataclass(frozen=True)
class ReplicaCores:
    """How replicas lie on cores.

    Attributes:
        device_assignment: The cores of each replica. Defaults to `None`: each has one of its own.
        input_partitions: Name of a placeholder that is cut over a replica's cores -> its parts along each
            dimension. Defaults to none: whatever is not cut is whole on each of them.
    """

    device_assignment: tf.tpu.experimental.DeviceAssignment | None = None
    input_partitions: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)

    def replicate(
        self, program: Callable[..., Any], inputs: Sequence[Sequence[tf.Tensor]]
    ) -> list[Any]:
        """Runs a program on each replica."""
        given = [list(each) for each in inputs]
        if self.device_assignment is None:
            return v1.tpu.replicate(program, given)
        return v1.tpu.replicate(program, given, device_assignment=self.device_assignment)

    def cut(self, name: str, tensor: tf.Tensor, *, stacked: bool = False) -> tf.Tensor:
        """Cuts one replica's input on the host, so that each core is sent its part only."""
        counts = self._counts(name, stacked=stacked)
        if counts is None:
            return tensor
        # In row-major order, the last axis fastest, as `tiled` numbers the cores: a matrix in 2 x 2
        # parts goes to them as top left, top right, bottom left, bottom right.
        parts = [tensor]
        for axis, count in enumerate(counts):
            parts = [piece for part in parts for piece in tf.split(part, count, axis=axis)]
        return tf_private.partitioned_input(
            parts, counts, shardings.tiled(counts).SerializeToString()
        )

    def annotated(self, name: str, tensor: tf.Tensor) -> tf.Tensor:
        """Tells the compiler, inside of a program, how a batch is cut."""
        counts = self._counts(name, stacked=False)
        if counts is None:
            return tensor
        return tf_private.with_sharding(tensor, shardings.tiled(counts))

    @property
    def several(self) -> bool:
        """Whether a replica has several cores."""
        assignment = self.device_assignment
        return assignment is not None and assignment.num_cores_per_replica > 1

    def _counts(self, name: str, *, stacked: bool) -> list[int] | None:
        counts = self.input_partitions.get(name)
        if counts is None:
            return None
        return [1, *counts] if stacked else list(counts)


ONE_CORE = ReplicaCores()
"""Each replica has a core of its own."""
