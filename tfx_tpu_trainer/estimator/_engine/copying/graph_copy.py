"""Copies nodes of a traced graph into the graph under construction, once for each replica."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.copying import cross_replica_ops
from tfx_tpu_trainer.estimator._engine.copying.cross_replica_ops import (
    EXCHANGES,
    REPLICA_NUMBER,
    give_seed_of_replica,
)
from tfx_tpu_trainer.estimator._engine.copying.replicated_functions import (
    ReplicatedFunctions,
    deciding_inputs,
)
from tfx_tpu_trainer.estimator._engine.copying.shared_ops import SharedOps
from tfx_tpu_trainer.estimator._engine.graph_nodes import (
    VariableChanges,
    reads_before_changes,
    waiting_for_reads,
)

v1 = tf.compat.v1

# From this number of control inputs on, a node that waits for them saves edges if several ops wait for the same ones.
_MANY_CONTROLS = 4


@dataclasses.dataclass(frozen=True)
class Fetch:
    """A node of the traced graph whose copy for one replica is to be returned."""

    # Which replica's copy, from 0.
    replica: int
    # A tensor or an operation of the traced graph.
    node: tf.Tensor | tf.Operation


class ReplicaCopier(Protocol):
    """Copies a traced graph onto replicas."""

    def copy(
        self, fetches: Sequence[Fetch], *, replaced: Sequence[Mapping[str, tf.Tensor]], name: str
    ) -> list[Any]:
        """Copies the fetches, and the ops that they need."""


# `copy` makes all replicas, in one graph where they read each other: a `CrossReplicaSum` becomes a
# plain sum over the copies of its group, the other exchanges in the same way (`cross_replica_ops`), a call
# of a function with an exchange inside one call of all replicas, and `XlaReplicaId` the replica's
# number. Variables are changed by the first replica: moving averages are the first one's, and the
# others wait for its changes. `copy_replica` makes one replica, for a runtime that runs the others
# and combines their values itself: a TPU's, or that of `tf.distribute`.
class GraphCopier:
    """Copies parts of a graph into the default graph; all copies share handles, such as variables."""

    def __init__(self, graph: tf.Graph) -> None:
        self.graph = graph
        graph_def = graph.as_graph_def()
        self._versions, self._library = graph_def.versions, graph_def.library
        self._changes = VariableChanges(graph_def.library)
        self.replicated_functions = ReplicatedFunctions(graph, graph_def.library, self._changes)
        self._node_defs: dict[str, v1.NodeDef] = {}
        self._order = {op.name: index for index, op in enumerate(graph.get_operations())}

    def copy(
        self,
        fetches: Sequence[Fetch],
        *,
        replaced: Sequence[Mapping[str, tf.Tensor]],
        name: str,
        alone: bool = False,
        ends_of_turns: Sequence[tf.Tensor] = (),
    ) -> list[Any]:
        """Copies the fetches, and the ops that they need, for all replicas."""
        job = _CopyJob(self, dict(enumerate(replaced)), alone=alone, ends_of_turns=ends_of_turns)
        return self._made(job, fetches, name)

    def copy_replica(
        self,
        nodes: Sequence[tf.Tensor | tf.Operation],
        *,
        replaced: Mapping[str, tf.Tensor | tf.Operation],
        replica: int = 0,
        left_out: Collection[str] = (),
        name: str = "replica",
    ) -> list[Any]:
        """Copies nodes, and the ops that they need, for one replica; exchanges stay unchanged."""
        job = _CopyJob(self, {replica: replaced}, alone=True, kept=True, left_out=left_out)
        return self._made(job, [Fetch(replica, node) for node in nodes], name)

    def _made(self, job: _CopyJob, fetches: Sequence[Fetch], name: str) -> list[Any]:
        """Adds a job's copies to the default graph and returns those that were fetched."""
        # A fetch that is replaced is in a graph already, so the import returns no node for it.
        standing = [job.standing_for(fetch) for fetch in fetches]
        names = [
            job.request(fetch.replica, fetch.node)
            for fetch, tensor in zip(fetches, standing)
            if tensor is None
        ]
        graph_def = job.finish()
        graph_def.versions.CopyFrom(self._versions)
        destination = v1.get_default_graph()
        if destination is not self.graph:
            # A graph that has the functions must not get them again: TensorFlow would free its
            # own, which the runtime knows by their names.
            graph_def.library.CopyFrom(self._library)
        graph_def.library.function.extend(self.replicated_functions.made)
        given = {key: tf_private.capture(destination, job.input_map[key]) for key in job.input_map}
        with tf_private.importing(destination):
            made = tf.graph_util.import_graph_def(
                graph_def, input_map=given, return_elements=names, name=name
            )
        copies = iter(made)
        return [next(copies) if tensor is None else tensor for tensor in standing]

    def changes_variable(self, op: tf.Operation) -> bool:
        """Returns whether an operation changes a variable, or passes on the result of a change."""
        while op.type in ("Identity", "IdentityN"):
            op = op.inputs[0].op
        return self.is_change(op)

    def is_change(self, op: tf.Operation) -> bool:
        """Returns whether an operation itself changes a variable."""
        return self._changes.made_by(self.node_def(op))

    def reads_other_replicas(self, op: tf.Operation) -> bool:
        """Returns whether an operation is an exchange between replicas, or calls a function with one."""
        return op.type in EXCHANGES or self.replicated_functions.exchanges_inside(self.node_def(op))

    def order(self, op: tf.Operation) -> int:
        """Returns an operation's position in its graph, in the order in which ops were made."""
        return self._order[op.name]

    def node_def(self, op: tf.Operation) -> v1.NodeDef:
        """Returns an operation's definition, which TensorFlow copies each time it is read."""
        if op.name not in self._node_defs:
            self._node_defs[op.name] = op.node_def
        return self._node_defs[op.name]


# How a graph is copied. The problem: N replicas of a model are to run in one graph, on N parts of a
# batch, and give the results of N devices. The idea: walk upstream from the fetches and make a node
# (op, replicas) for each op on the way, named after both; tensors in `replaced` (the part of the
# batch) end the walk. `_pending` holds nodes that are referred to but not made yet.
# `_copy_of` decides which replicas share a node: the members of a group share a sum; all replicas
# share handles, calls with a sum inside, and ops that depend on no row (`shared_ops`); of every
# other op each replica has its own.
# Example: y = CrossReplicaSum(x * w), two replicas, x replaced by x0 and x1, gives
#   mul0 = x0 * w, mul1 = x1 * w, sum = AddN(mul0, mul1), and the ys of both replicas are the sum.
# The invariant: a session on the copies reads each variable before or after a change of it exactly
# as a session on the model would; `finish` orders the nodes for that.
class _CopyJob:
    """The GraphDef of one call, growing from the fetches upstream."""

    def __init__(
        self,
        copier: GraphCopier,
        replaced: Mapping[int, Mapping[str, Any]],
        *,
        alone: bool,
        kept: bool = False,
        left_out: Collection[str] = (),
        ends_of_turns: Sequence[tf.Tensor] = (),
    ) -> None:
        self._copier = copier
        self._alone = alone
        self._kept = kept
        self._ends_of_turns = ends_of_turns
        self._left_out = left_out
        self._replaced = replaced
        self._spared = SharedOps(
            node_def=copier.node_def,
            is_handle=makes_handle,
            is_of_first=copier.changes_variable,
            differing=(name for of_replica in replaced.values() for name in of_replica),
        )
        # (place in the model, first replica, whether it changes a variable, the copy).
        self._nodes: list[tuple[int, int, bool, v1.NodeDef]] = []
        # (name of the op, replicas that share the copy) -> name of the copy.
        self._names: dict[Any, str] = {}
        # Many nodes that an op waits for -> the one node that waits for them instead.
        self._waiting: dict[frozenset[str], str] = {}
        self._controlled: dict[tuple[int, frozenset[tf.Operation]], list[str]] = {}
        self._pending: list[tuple[str, tf.Operation, tuple[int, ...]]] = []
        self.input_map: dict[str, tf.Tensor] = {}

    def standing_for(self, fetch: Fetch) -> tf.Tensor | None:
        """Returns the tensor that replaces a fetch, or `None` if the fetch is to be copied."""
        if isinstance(fetch.node, tf.Operation):
            return None
        if fetch.node.name in self._replaced[fetch.replica]:
            return self._replaced[fetch.replica][fetch.node.name]
        if makes_handle(fetch.node.op):
            return tf_private.capture(v1.get_default_graph(), fetch.node)
        return None

    def request(self, replica: int, node: tf.Tensor | tf.Operation) -> str:
        """Requests the copy of a fetch, and returns the name under which an import returns it."""
        if isinstance(node, tf.Operation):
            return self._copy_of(replica, node)
        name = self._input_of(replica, node)
        return name if ":" in name else f"{name}:0"

    def finish(self) -> v1.GraphDef:
        """Copies everything that was requested, and the ops that it needs."""
        functions = self._copier.replicated_functions
        while self._pending:
            name, op, replicas = self._pending.pop()
            if op.name in self._left_out:
                # Another replica makes this change for all; its control inputs still count.
                nodes = [v1.NodeDef(name=name, op="NoOp", input=self._controls(replicas[0], op))]
            elif self._kept:
                nodes = [self._copy(name, op, replicas[0])]
            elif op.type in EXCHANGES:
                nodes = self._exchange(name, op, replicas)
            elif op.type == REPLICA_NUMBER:
                nodes = [cross_replica_ops.replica_number(name, replicas[0])]
            elif self._is_joint(op) or functions.numbers_inside(self._node_def(op)):
                nodes = [self._join(name, op, replicas)]
            else:
                nodes = [self._copy(name, op, replicas[0])]
            entry = self._copier.order(op), replicas[0], self._copier.is_change(op)
            self._nodes.extend((*entry, node) for node in nodes)
        # Keep the model's order, not that of the fetches: TensorFlow seeds an op by its position,
        # and a function runs ops with effects in this order.
        self._nodes.sort(key=lambda entry: entry[:2])
        nodes = [node for *_, node in self._nodes]
        numbers = {node.name: number for number, node in enumerate(nodes)}
        sources = [
            [numbers[name] for name in map(_node_name, node.input) if name in numbers]
            for node in nodes
        ]
        changes = [changes for *_, changes, _ in self._nodes]
        order = reads_before_changes(sources, changes)
        ordered = [nodes[number] for number in order]
        return v1.GraphDef(node=waiting_for_reads(ordered, [changes[number] for number in order]))

    def _input_of(self, replica: int, tensor: tf.Tensor) -> str:
        if tensor.name in self._replaced[replica]:
            key = f"replaced/core{replica}/{tensor.name.replace(':', '_')}"
            self.input_map[f"{key}:0"] = self._replaced[replica][tensor.name]
            return key
        if makes_handle(tensor.op):
            key = f"captured/{tensor.name.replace(':', '_')}"
            self.input_map[f"{key}:0"] = tensor
            return key
        name, index = self._copy_of(replica, tensor.op), tensor.value_index
        if self._is_joint(tensor.op):
            # A joint call returns all outputs of its first replica, then all of its second.
            index += self._joint_replicas(replica).index(replica) * len(tensor.op.outputs)
        return f"{name}:{index}" if index else name

    def _read(self, replica: int, tensor: tf.Tensor) -> str:
        """Returns what an op's copy reads, past gates; its `_controls` wait for what the gates wait for."""
        return self._input_of(replica, tensor if self._kept else self._spared.behind_gates(tensor))

    def _copy_of(self, replica: int, op: tf.Operation) -> str:
        replicas: tuple[int, ...] = (replica,)
        if (
            op.type in EXCHANGES
            and not self._alone
            and cross_replica_ops.same_on_all(self._node_def(op))
        ):
            # One sum for the group: one for each replica would compute the same again.
            replicas = self._senders(op, replica)
        elif self._is_joint(op):
            replicas = self._joint_replicas(replica)
        elif not self._kept:
            op = self._spared.constant_like(op)
            if replica > 0 and self._spared.same_on_all(op):
                replicas = (0,)
        key = (op.name, replicas)
        if key not in self._names:
            self._names[key] = op.name if self._kept else f"core{replicas[0]}/{op.name}"
            self._pending.append((self._names[key], op, replicas))
        return self._names[key]

    def _copy(self, name: str, op: tf.Operation, replica: int) -> v1.NodeDef:
        node = v1.NodeDef()
        node.CopyFrom(self._copier.node_def(op))
        node.name = name
        # Colocation names nodes of the traced graph, which this graph may lack.
        node.attr.pop("_class", None)
        if self._kept:
            # The runtime places each replica as a whole; a device of the trace would split it.
            node.device = ""
        give_seed_of_replica(node, replica)
        del node.input[:]
        node.input.extend(self._read(replica, tensor) for tensor in op.inputs)
        node.input.extend(self._controls(replica, op))
        if self._ends_of_turns and any(t.name in self._replaced[replica] for t in op.inputs):
            # All other ops that depend on the replica's rows come after these by themselves.
            node.input.extend(self._turn_before(replica, op))
        return node

    def _turn_before(self, replica: int, op: tf.Operation) -> list[str]:
        """Returns control inputs that wait for the end of the previous replica's turn."""
        if replica == 0:
            return []
        made = (f"^{self._copy_of(replica - 1, tensor.op)}" for tensor in self._ends_of_turns)
        return self._together(op, list(dict.fromkeys(made)))

    def _join(self, name: str, op: tf.Operation, replicas: tuple[int, ...]) -> v1.NodeDef:
        definition = self._copier.node_def(op)
        node = self._copier.replicated_functions.join(definition, name, replicas)
        deciding = deciding_inputs(definition)
        inputs = list(op.inputs)
        node.input.extend(self._read(replicas[0], tensor) for tensor in inputs[:deciding])
        for replica in replicas:
            node.input.extend(self._read(replica, tensor) for tensor in inputs[deciding:])
        for replica in replicas:
            node.input.extend(self._controls(replica, op))
        return node

    def _controls(self, replica: int, op: tf.Operation) -> list[str]:
        """Returns the control inputs of an op's copy."""
        waits = op.control_inputs if self._kept else self._spared.waits_for(op)
        if not waits:
            return []
        # Hundreds of ops wait for the same hundred changes, in different orders.
        key = replica, frozenset(waits)
        if key not in self._controlled:
            self._controlled[key] = self._waiting_for(replica, waits, op)
        return self._controlled[key]

    def _waiting_for(
        self, replica: int, waits: Sequence[tf.Operation], op: tf.Operation
    ) -> list[str]:
        controls: dict[str, None] = {}
        changed: dict[str, None] = {}
        for control in waits:
            changes = not self._kept and self._copier.changes_variable(control)
            # The first replica changes variables for all.
            waits_for = 0 if changes else replica
            if control.name in self._replaced[waits_for]:
                controls[self._done(control, self._replaced[waits_for][control.name])] = None
            elif not self._stands_outside(waits_for, control):
                waited = changed if changes else controls
                waited[f"^{self._copy_of(waits_for, control)}"] = None
        return [*controls, *self._together(op, list(changed))]

    def _together(self, op: tf.Operation, controls: list[str]) -> list[str]:
        """Replaces many control inputs by one node that waits for them, and returns that."""
        # Gradients made after the moving averages of batch norm wait for each of them: nine in ten
        # edges of ResNet-50's step.
        if len(controls) < _MANY_CONTROLS:
            return controls
        key = frozenset(controls)
        if key not in self._waiting:
            self._waiting[key] = f"together/{len(self._waiting)}"
            node = v1.NodeDef(name=self._waiting[key], op="NoOp", input=controls)
            self._nodes.append((self._copier.order(op), 0, False, node))
        return [f"^{self._waiting[key]}"]

    def _done(self, op: tf.Operation, done: tf.Operation) -> str:
        """Returns the control input that waits for an operation's replacement."""
        key = f"^done/{op.name}"
        if key not in self.input_map:
            # Only a tensor can be mapped: this one exists once the operation has run.
            with tf.control_dependencies([done]):
                self.input_map[key] = tf.constant(True)
        return key

    def _is_joint(self, op: tf.Operation) -> bool:
        return not self._kept and self._copier.replicated_functions.exchanges_inside(
            self._node_def(op)
        )

    def _joint_replicas(self, replica: int) -> tuple[int, ...]:
        return (replica,) if self._alone else tuple(self._replaced)

    def _exchange(self, name: str, op: tf.Operation, replicas: tuple[int, ...]) -> list[v1.NodeDef]:
        dimension = self._constant(op, 2) if op.inputs[2:] else None
        nodes = cross_replica_ops.exchange(
            self._node_def(op),
            name,
            replica=replicas[0],
            senders=self._senders(op, replicas[0]),
            replicas=self._joint_replicas(replicas[0]),
            read=lambda replica: self._read(replica, op.inputs[0]),
            scatter_dimension=None if dimension is None else int(dimension),
            one_by_one=bool(self._ends_of_turns),
        )
        nodes[-1].input.extend(self._controls(replicas[0], op))
        return nodes

    def _senders(self, op: tf.Operation, replica: int) -> tuple[int, ...]:
        return cross_replica_ops.senders(self._node_def(op), self._constant(op, 1), replica)

    def _constant(self, op: tf.Operation, index: int) -> np.ndarray:
        """Returns the value of an input that must be known before the graph runs."""
        value = tf.get_static_value(op.inputs[index])
        if value is None:
            # The gradient of a sum in a function receives its groups as the result of a call.
            value = self._copier.replicated_functions.scope.value(op.inputs[index].name)
        if value is None:
            raise ValueError(
                f"{op.name} ({op.type}) has groups of cores that are not constant: give it a list."
            )
        return np.asarray(value)

    def _node_def(self, op: tf.Operation) -> v1.NodeDef:
        return self._copier.node_def(op)

    def _stands_outside(self, replica: int, op: tf.Operation) -> bool:
        replaced = any(tensor.name in self._replaced[replica] for tensor in op.outputs)
        return replaced or makes_handle(op)


def _node_name(reference: str) -> str:
    """Returns the name of the node that an input of a NodeDef refers to."""
    return reference.removeprefix("^").split(":")[0]


def makes_handle(op: tf.Operation) -> bool:
    """Returns whether an operation makes a handle of something that all replicas share."""
    return (
        not op.inputs
        and bool(op.outputs)
        and all(tensor.dtype in (tf.resource, tf.variant) for tensor in op.outputs)
        and op.type != "Const"
    )
