"""Decides which ops of a traced graph all replicas can share.

Sharing halves the nodes in a step of BERT-base on two replicas, for Python, TensorFlow's optimizer and its executor.
"""

from collections.abc import Callable, Iterable

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.cross_replica_ops import (
    EXCHANGES,
    REPLICA_NUMBER,
    has_seed,
)
from tfx_tpu_trainer.estimator._engine.graph_nodes import calls_functions

v1 = tf.compat.v1

_CONSTANT = "Const"
# TensorFlow counts a read as stateful, but the state belongs to the variable.
_READ = "ReadVariableOp"
# Constants above this size are not compared: that would cost more than it saves.
_MOST_BYTES_COMPARED = 1024
# The name scope in which `tf.gradients` gates the gradients of one op.
_GATES = "_grad/tuple/"


# Which ops are shared. The problem: N replicas have N copies of every op, but much of a step does
# not depend on their rows. In
#   loss = cross_entropy(x @ w) + 1e-4 * l2_loss(w)
# the product differs from replica to replica; l2_loss(w), its gradient and the learning rate do
# not.
# The idea: an op is the same on all replicas if neither it nor anything that it needs belongs
# to one replica (`_is_own`): its rows, other replicas' values, its number, random numbers. An op that
# may have an effect is a replica's own as well, since the effect must not happen less often, and so
# is a call of functions, whose bodies are not read. Reading a variable has no effect, and the first
# replica changes variables for all.
# The invariant: with shared copies each replica computes the same bits as with its own.
class SharedOps:
    """Decides which ops the replicas share, and remembers it while one graph is copied."""

    def __init__(
        self,
        *,
        node_def: Callable[[tf.Operation], v1.NodeDef],
        is_handle: Callable[[tf.Operation], bool],
        is_of_first: Callable[[tf.Operation], bool],
        differing: Iterable[str],
    ) -> None:
        self._node_def = node_def
        self._is_handle = is_handle
        self._is_of_first = is_of_first
        self._differing = frozenset(differing)
        self._stateful: dict[str, bool] = {}
        self._same: dict[str, bool] = {}
        self._gates: dict[str, list[tf.Operation] | None] = {}
        self._constants: dict[bytes, tf.Operation] = {}
        self._likes: dict[str, tf.Operation] = {}

    def same_on_all(self, op: tf.Operation) -> bool:
        """Returns whether an op has the same outputs on all replicas, and no effect."""
        pending, opened = [op], set[str]()
        while pending:
            current = pending.pop()
            if current.name in self._same:
                continue
            if self._is_own(current):
                self._same[current.name] = False
                continue
            needed = self._needed(current)
            unknown = [each for each in needed if each.name not in self._same]
            if unknown and current.name not in opened:
                opened.add(current.name)
                pending += [current, *unknown]
                continue
            # An op is visited twice: to queue what it needs, and once all of that is known. An op
            # that is still unknown then needs itself, in a loop of TensorFlow 1.
            self._same[current.name] = all(self._same.get(each.name, False) for each in needed)
        return self._same[op.name]

    def constant_like(self, op: tf.Operation) -> tf.Operation:
        """Returns the constant that replaces one: the first requested of its equals."""
        if op.type != _CONSTANT or op.control_inputs:
            return op
        if op.name not in self._likes:
            self._likes[op.name] = self._first_equal(op)
        return self._likes[op.name]

    def _first_equal(self, op: tf.Operation) -> tf.Operation:
        known = self._node_def(op)
        if has_seed(known) or known.ByteSize() > _MOST_BYTES_COMPARED:
            return op
        definition = v1.NodeDef()
        definition.CopyFrom(known)
        # Equal constants may differ in name and colocation.
        definition.name = ""
        definition.attr.pop("_class", None)
        return self._constants.setdefault(definition.SerializeToString(deterministic=True), op)

    def behind_gates(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the gradient that a gate lets through once all gradients of the same op exist."""
        # Optimizers of `tf.compat.v1` have `tf.gradients` make a gate of two nodes or more for each
        # op. A reader that skips it needs its control inputs (`waits_for`): without them a
        # step computes more gradients at a time, and ResNet-50 needs 7 % more memory.
        while self._others_before(tensor.op) is not None:
            tensor = tensor.op.inputs[0]
        return tensor

    def waits_for(self, op: tf.Operation) -> list[tf.Operation]:
        """Returns the control inputs of an op, and of the gates before it."""
        waits = dict.fromkeys(op.control_inputs)
        for tensor in op.inputs:
            while (others := self._others_before(tensor.op)) is not None:
                waits.update(dict.fromkeys(others))
                tensor = tensor.op.inputs[0]
        return list(waits)

    def _others_before(self, op: tf.Operation) -> list[tf.Operation] | None:
        """Returns what a gate waits for in addition to the gradient that it lets through; `None` for other ops."""
        if op.type != "Identity" or _GATES not in op.name or op.outputs[0].name in self._differing:
            return None
        if op.name not in self._gates:
            gradient = op.inputs[0].op
            # `tf.tuple` makes the gate: an Identity of one gradient that waits for a group of all.
            groups = [control for control in op.control_inputs if control.type == "NoOp"]
            waits = [*op.control_inputs, *(each for g in groups for each in g.control_inputs)]
            others = [each for each in dict.fromkeys(waits) if each not in (gradient, *groups)]
            self._gates[op.name] = others if gradient in waits else None
        return self._gates[op.name]

    def _is_own(self, op: tf.Operation) -> bool:
        """Returns whether an op differs between replicas even with equal inputs."""
        if op.type in EXCHANGES or op.type == REPLICA_NUMBER:
            return True
        if any(tensor.name in self._differing for tensor in op.outputs):
            return True
        if self._is_stateful(op) and op.type != _READ:
            return True
        node = self._node_def(op)
        return has_seed(node) or calls_functions(node)

    def _needed(self, op: tf.Operation) -> list[tf.Operation]:
        sources = [self.behind_gates(tensor).op for tensor in op.inputs]
        sources += [each for each in self.waits_for(op) if not self._is_of_first(each)]
        return [source for source in dict.fromkeys(sources) if not self._is_handle(source)]

    def _is_stateful(self, op: tf.Operation) -> bool:
        if op.type not in self._stateful:
            self._stateful[op.type] = op.op_def.is_stateful
        return self._stateful[op.type]
