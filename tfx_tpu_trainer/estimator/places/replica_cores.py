"""Spreads a replica over several cores of a TPU: which cores they are, and which part of the input each gets.

The original enqueues each core's part of a tensor in the core's infeed queue; here the parts are inputs of the program.
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
    """A variable that is cut over the cores of a replica."""

    # TensorFlow's passes cut a variable according to its readers, since the variable itself, with its own annotation,
    # is outside of the program.

    # The op that makes its handle in the traced graph.
    variable: tf.Operation
    # Its OpSharding.
    sharding: Any

    def read(self, handle: tf.Tensor) -> tf.Tensor:
        """Reads it, inside a program."""
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=self.variable.get_attr("dtype"))
        value.set_shape(tf.TensorShape(self.variable.get_attr("shape")))
        return tf_private.with_sharding(value, self.sharding)

    def keep(self, handle: tf.Tensor) -> tf.Operation:
        """Cuts it for a whole program, including ops that change it without reading it."""
        return tf.raw_ops.AssignVariableOp(resource=handle, value=self.read(handle))


def cut_variables(nodes: Iterable[tf.Tensor | tf.Operation]) -> dict[str, CutVariable]:
    """Returns name of a handle -> variable, for the variables in use that a model cuts."""
    ops = list(upstream(nodes))
    found = shardings.variable_shardings([op.node_def for op in ops])
    return {op.outputs[0].name: CutVariable(op, found[op.name]) for op in ops if op.name in found}


@dataclasses.dataclass(frozen=True)
class ReplicaCores:
    """The cores of the replicas, and how inputs are cut over them."""

    # The cores of each replica; `None` if each has one.
    device_assignment: tf.tpu.experimental.DeviceAssignment | None = None
    # Name of a placeholder that is cut over a replica's cores -> its parts along each dimension;
    # each core has the others whole.
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
        """Cuts one replica's input on the host, so each core is sent only its part."""
        counts = self._counts(name, stacked=stacked)
        if counts is None:
            return tensor
        # In row-major order, the last axis fastest, as `tiled` numbers the cores: of a matrix in
        # 2 x 2 parts they get top left, top right, bottom left, bottom right.
        parts = [tensor]
        for axis, count in enumerate(counts):
            parts = [piece for part in parts for piece in tf.split(part, count, axis=axis)]
        return tf_private.partitioned_input(
            parts, counts, shardings.tiled(counts).SerializeToString()
        )

    def annotated(self, name: str, tensor: tf.Tensor) -> tf.Tensor:
        """Annotates a batch, inside a program, with how it is cut."""
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
"""Each replica has its own core."""
