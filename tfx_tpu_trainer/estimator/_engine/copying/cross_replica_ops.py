"""Replaces ops that read other replicas, or their own number, by ordinary ops.

TensorFlow has no CPU kernels for them, except for `XlaReplicaId`, whose kernel ends the process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private

v1 = tf.compat.v1

SUM = "CrossReplicaSum"
"""The name of the op that adds up a tensor over all replicas."""
REPLICA_NUMBER = "XlaReplicaId"

# The distance between the op-level seeds of two replicas. TensorFlow seeds an op with its number in
# the graph, so a small one would give an op the random numbers of its neighbour on another replica.
_SEED_STRIDE = 7919

# The attribute that marks a constant as an op-level seed.
_SEED = "_op_seed"

_REDUCE = "XlaAllReduce"
_SCATTER = "XlaReduceScatter"
_PERMUTE = "CollectivePermute"
_ALL_TO_ALL = "AllToAll"

EXCHANGES = frozenset({SUM, _REDUCE, _SCATTER, _PERMUTE, _ALL_TO_ALL})
"""Types of ops that read other replicas; their second input selects which."""

# The ops that combine two replicas' tensors; sums have an op that takes all at once.
_REDUCTIONS = {b"Min": "Minimum", b"Max": "Maximum", b"Mul": "Mul"}

Read = Callable[[int], str]
"""Returns the reference to one replica's contribution to an exchange."""


def give_seed_of_replica(node: v1.NodeDef, replica: int) -> None:
    """Gives each replica's copy of a seeded random op its own seed, the same in each run."""
    if "seed2" in node.attr and (node.attr["seed"].i or node.attr["seed2"].i):
        node.attr["seed2"].i += replica * _SEED_STRIDE
    elif _SEED in node.attr:
        # A stateless random op reads its seed from a constant (see `mark_seed`).
        seed = tf.make_ndarray(node.attr["value"].tensor) + np.uint64(replica * _SEED_STRIDE)
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(seed, tf.uint64))


def has_seed(node: v1.NodeDef) -> bool:
    """Returns whether `give_seed_of_replica` may make a node differ between replicas."""
    return "seed2" in node.attr or _SEED in node.attr


def mark_seed(constant: tf.Operation) -> None:
    """Marks a constant as the op-level seed of its readers, for `give_seed_of_replica`."""
    tf_private.set_attribute(constant, _SEED, v1.AttrValue(b=True))


def senders(node: v1.NodeDef, assignment: np.ndarray, replica: int) -> tuple[int, ...]:
    """Returns the replicas from which an exchange brings values to one of them."""
    rows = assignment.tolist()
    if node.op == _PERMUTE:
        for column, role in enumerate(("source", "target")):
            replicas = [pair[column] for pair in rows]
            if len(set(replicas)) < len(replicas):
                raise ValueError(
                    f"{node.name}: a core occurs twice as a {role} in the source_target_pairs "
                    f"{rows}; name it once."
                )
        return tuple(source for source, target in rows if target == replica)
    # The order within a group counts: in an AllToAll it decides which replica gets which piece.
    for group in rows:
        if replica in group:
            return tuple(group)
    raise ValueError(f"{node.name}: core {replica} is in no group of the group_assignment {rows}.")


def same_on_all(node: v1.NodeDef) -> bool:
    """Returns whether an exchange gives all replicas of a group the same value."""
    return node.op in (SUM, _REDUCE)


def result_name(node: v1.NodeDef) -> str:
    """Returns the name of the output that has an exchange's result, for references in functions."""
    return "sum" if node.op == SUM else "output"


def replica_number(name: str, replica: int) -> v1.NodeDef:
    """Makes the constant that replaces a replica's `XlaReplicaId`."""
    number = v1.NodeDef(name=name, op="Const")
    number.attr["dtype"].type = tf.int32.as_datatype_enum
    number.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(replica, tf.int32))
    return number


# How an exchange becomes ordinary ops. The problem: `CrossReplicaSum`, `AllToAll` and the others
# have no kernel on a CPU. The idea: all replicas are in one graph (or one function), so an exchange
# is an op that reads the tensors of several of them. `senders` are the replicas that the op's
# groups name, `replicas` those in this graph; `read(r)` is the reference to replica r's tensor:
#   CrossReplicaSum, groups [[0, 1]], on replica 1   ->  AddN(read(0), read(1))
#   CollectivePermute [[0, 1]], on replica 0         ->  zeros: no replica sends to it
#   AllToAll of two pieces, on replica 1             ->  Concat(second half of read(0), of read(1))
# If a sender is not in the graph (the short last batch runs on one replica alone), a sum adds up
# the replicas that are, since all get the same result; any other op fails when it runs, with the
# reason. The last node returned has the name `name` and the result.
def exchange(
    node: v1.NodeDef,
    name: str,
    *,
    replica: int,
    senders: Sequence[int],
    replicas: Sequence[int],
    read: Read,
    scatter_dimension: int | None = None,
    in_function: bool = False,
    one_by_one: bool = False,
) -> list[v1.NodeDef]:
    """Makes an exchange of ordinary ops."""
    made = _Nodes(node, name, in_function=in_function)
    present = [sender for sender in senders if sender in replicas]
    if len(present) < len(senders) and not same_on_all(node):
        made.fail(read(replica))
    elif node.op == _PERMUTE and not present:
        zeros = made.op("ZerosLike", "/zeros", [read(replica)], output="y", T=made.dtype)
        made.op("Identity", "", [zeros], T=made.dtype)
    elif node.op == _PERMUTE:
        made.op("Identity", "", [read(present[0])], T=made.dtype)
    elif node.op == _ALL_TO_ALL:
        _exchange_pieces(made, node, present.index(replica), [read(each) for each in present])
    elif node.op == _SCATTER:
        if scatter_dimension is None:
            raise ValueError(f"{node.name}: scatter_dimension must be a constant.")
        total = _reduced(made, node, [read(each) for each in present], "/reduced")
        made.piece("", total, scatter_dimension, len(present), present.index(replica))
    else:
        inputs = [read(each) for each in present]
        if one_by_one and node.op == SUM:
            # Replicas that take turns: a sum of two frees both addends before the next replica has
            # its own, where one AddN would hold the gradients of all. The sum of a, b and c is
            #   sum1 = a + b, result = AddN(sum1, c).
            for number in range(1, len(inputs) - 1):
                partial = made.op("AddV2", f"/sum{number}", inputs[:2], output="z", T=made.dtype)
                inputs = [partial, *inputs[2:]]
        _reduced(made, node, inputs, "")
    return made.nodes


def _exchange_pieces(made: _Nodes, node: v1.NodeDef, place: int, inputs: Sequence[str]) -> None:
    """Joins the pieces that the replicas of a group have for the one at a place in it."""
    count = node.attr["split_count"].i
    split = node.attr["split_dimension"].i
    pieces = [
        made.piece(f"/from{number}", given, split, count, place)
        for number, given in enumerate(inputs)
    ]
    axis = made.constant("/axis", node.attr["concat_dimension"].i)
    made.op("ConcatV2", "", [*pieces, axis], N=count, T=made.dtype, Tidx=tf.int32)


def _reduced(made: _Nodes, node: v1.NodeDef, inputs: Sequence[str], suffix: str) -> str:
    if node.op == SUM:
        return made.op("AddN", suffix, inputs, output="sum", N=len(inputs), T=made.dtype)
    how = node.attr["reduce_op"].s
    if how in _REDUCTIONS:
        total = inputs[0]
        for number, given in enumerate(inputs[1:], 1):
            step = f"/reduced{number}"
            total = made.op(_REDUCTIONS[how], step, [total, given], output="z", T=made.dtype)
    else:
        total = made.op("AddN", "/sum", inputs, output="sum", N=len(inputs), T=made.dtype)
        if how == b"Mean":
            count = made.constant("/count", len(inputs), made.dtype)
            total = made.op("Div", "/mean", [total, count], output="z", T=made.dtype)
    return made.op("Identity", suffix, [total], T=made.dtype)


class _Nodes:
    """The nodes that replace one node, in the order in which they are made."""

    def __init__(self, node: v1.NodeDef, name: str, *, in_function: bool) -> None:
        self.nodes: list[v1.NodeDef] = []
        self.dtype = tf.dtypes.as_dtype(node.attr["T"].type)
        self._node = node
        self._name = name
        self._in_function = in_function

    def op(
        self,
        op: str,
        suffix: str,
        inputs: Sequence[str],
        *,
        output: str = "output",
        index: int = 0,
        **attrs: int | tf.DType,
    ) -> str:
        """Adds a node; returns the reference to one of its outputs."""
        made = v1.NodeDef(name=self._name + suffix, op=op, input=inputs)
        for key, value in attrs.items():
            if isinstance(value, tf.DType):
                made.attr[key].type = value.as_datatype_enum
            else:
                made.attr[key].i = value
        self.nodes.append(made)
        return f"{made.name}:{output}:{index}" if self._in_function else f"{made.name}:{index}"

    def constant(self, suffix: str, value: Any, dtype: tf.DType = tf.int32) -> str:
        reference = self.op("Const", suffix, [], dtype=dtype)
        self.nodes[-1].attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, dtype))
        return reference

    def piece(self, suffix: str, whole: str, axis: int, count: int, number: int) -> str:
        """Cuts a tensor into equal pieces and adds the one with a number."""
        dimension = self.constant(f"{suffix}/axis", axis)
        cut = self.op(
            "Split",
            f"{suffix}/pieces",
            [dimension, whole],
            index=number,
            num_split=count,
            T=self.dtype,
        )
        return self.op("Identity", suffix, [cut], T=self.dtype)

    def fail(self, given: str) -> None:
        """Adds an assertion that ends the run, and a result of unknown shape that waits for it."""
        here = self.constant("/here", False, tf.bool)
        why = self.constant(
            "/why",
            f"{self._node.name} ({self._node.op}) needs values of other TPU cores, but this copy "
            "of the model runs alone, on the short last batch of an evaluation for example: let "
            "the input_fn drop that batch (batch(..., drop_remainder=True)).",
            tf.string,
        )
        self.op("Assert", "/assert", [here, why], summarize=1)
        asserted = self.nodes[-1]
        asserted.attr["T"].list.type.append(tf.string.as_datatype_enum)
        # This never runs, but nodes that read it are still made, and might not accept its shape.
        self.op("PlaceholderWithDefault", "", [given, f"^{asserted.name}"], dtype=self.dtype)
        self.nodes[-1].attr["shape"].shape.unknown_rank = True
