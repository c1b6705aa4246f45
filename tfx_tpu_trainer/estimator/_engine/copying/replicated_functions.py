"""Joins the calls of functions in which replicas read each other into one call of all replicas.

A `CrossReplicaSum` in the branch of a condition or in the body of a loop (commonly, an optimizer that is applied every
few steps) adds up values within the calls of all replicas. So these calls become one, of a function that holds every
replica's copy of the body. A function that only reads the replica's number gets a version for each replica.

Which replicas an exchange reads must be known while the copies are made. TensorFlow's gradients pass that on as a
tensor: a result of the function that has the exchange, and an argument of the function that has its gradient. `Scope`
finds the value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying import cross_replica_ops
from tfx_tpu_trainer.estimator._engine.copying.cross_replica_ops import (
    EXCHANGES,
    REPLICA_NUMBER,
    give_seed_of_replica,
)
from tfx_tpu_trainer.estimator._engine.graph_nodes import (
    VariableChanges,
    called_functions,
    functions_of,
    functions_with,
)

v1 = tf.compat.v1

_PASSING_ON = frozenset({"Identity", "StopGradient", "PreventGradient"})
_FUNCTION_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_UNREAD_MASKS = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


# How a value is found through calls. The problem: the gradient of a CrossReplicaSum in a branch is
# a sum over the same groups in another function, which receives them as an argument:
#   branch() = (CrossReplicaSum(g, groups=Const), groups),  gradient(dy, groups) = sum(dy, groups)
# Constant folding does not reach it, and the copies can't be made without it.
# The idea: a scope knows the nodes around it and, in a function, what the call gives each argument;
# `value` walks back through both, up into the caller and down into a call whose result is read,
# until it meets a constant.
class Scope:
    """A graph, or the body of a function in one call of it."""

    def __init__(
        self,
        find: Callable[[str], v1.NodeDef | None],
        functions: Mapping[str, Any],
        *,
        arguments: Sequence[str] = (),
        given: Sequence[str] = (),
        outer: Scope | None = None,
    ) -> None:
        # Whether a value was looked up among the call's arguments: a function made with it is valid
        # for this call only.
        self.asked_outside = False
        self._find = find
        self._functions = functions
        self._arguments = {name: number for number, name in enumerate(arguments)}
        self._given = given
        self._outer = outer

    def value(self, reference: str) -> np.ndarray | None:
        """Returns the value of a reference, or `None` if it isn't known."""
        name, *output = reference.split(":")
        if name in self._arguments:
            self.asked_outside = True
            number = self._arguments[name]
            given = self._given[number] if number < len(self._given) else ""
            return self._outer.value(given) if self._outer is not None and given else None
        node = self._find(name)
        if node is None:
            return None
        if node.op == "Const":
            return tf.make_ndarray(node.attr["value"].tensor)
        if node.op in _PASSING_ON:
            return self.value(node.input[0])
        if node.op == "StridedSlice":
            return self._slice(node)
        if node.op in _FUNCTION_CALLS:
            return self._result(node, int(output[-1]) if output else 0)
        return None

    def of_call(self, function: str, given: Sequence[str]) -> Scope:
        """Returns the scope of a function's body in one call."""
        definition = self._functions[function]
        nodes = {inner.name: inner for inner in definition.node_def}
        arguments = [argument.name for argument in definition.signature.input_arg]
        return Scope(nodes.get, self._functions, arguments=arguments, given=given, outer=self)

    def unchanged(self, body: str, given: Sequence[str]) -> list[str]:
        """Returns a loop's first references, each empty where a round may change its value."""
        # body(i, groups) = (i + 1, groups), given (i0, g0), is ["", "g0"]: every round has g0.
        definition = self._functions[body]
        inner = self.of_call(body, given)
        results = [inner._origin(definition.ret[r.name]) for r in definition.signature.output_arg]
        arguments = [argument.name for argument in definition.signature.input_arg]
        return [g if a == r else "" for g, a, r in zip(given, arguments, results)]

    def _origin(self, reference: str) -> str:
        """Returns the name of the argument or node from which a reference's value is passed on."""
        name = reference.split(":")[0]
        node = None if name in self._arguments else self._find(name)
        return self._origin(node.input[0]) if node and node.op in _PASSING_ON else name

    def _result(self, node: v1.NodeDef, number: int) -> np.ndarray | None:
        function = node.attr["f"].func.name
        if function not in self._functions:
            return None
        definition = self._functions[function]
        result = definition.ret[definition.signature.output_arg[number].name]
        given = [each for each in node.input if not each.startswith("^")]
        return self.of_call(function, given).value(result)

    def _slice(self, node: v1.NodeDef) -> np.ndarray | None:
        whole, *bounds = (self.value(reference) for reference in node.input[:4])
        if whole is None or any(node.attr[mask].i for mask in _UNREAD_MASKS):
            return None
        begin, end, strides = (None if bound is None else bound.tolist() for bound in bounds)
        if begin is None or end is None or strides is None:
            return None
        from_start, to_end = node.attr["begin_mask"].i, node.attr["end_mask"].i
        parts = []
        for axis, stride in enumerate(strides):
            first = None if from_start & (1 << axis) else begin[axis]
            last = None if to_end & (1 << axis) else end[axis]
            parts.append(slice(first, last, stride))
        return whole[tuple(parts)]


# The attributes of calls that name functions, and those that list a type or shape for each input or
# output; for each type of call, how many of its first inputs decide which function runs.
_FUNCTIONS = ("then_branch", "else_branch", "body", "cond", "f", "branches")
_LISTS = ("Tin", "Tout", "T", "output_shapes")
_CALLS = {
    "If": 1,
    "StatelessIf": 1,
    "Case": 1,
    "StatelessCase": 1,
    "While": 0,
    "StatelessWhile": 0,
    "PartitionedCall": 0,
    "StatefulPartitionedCall": 0,
    "XlaWhile": 0,
}


def deciding_inputs(node: v1.NodeDef) -> int:
    """Returns how many of a call's first inputs are taken from one replica only."""
    return _CALLS[node.op]


def given_to_functions(node: v1.NodeDef, scope: Scope) -> list[str]:
    """Returns references to the arguments of a call's functions, empty where a loop changes one."""
    given = [each for each in node.input if not each.startswith("^")][_CALLS.get(node.op, 0) :]
    return scope.unchanged(node.attr["body"].func.name, given) if "body" in node.attr else given


class ReplicatedFunctions:
    """Makes functions of several replicas from a graph's functions."""

    def __init__(self, graph: tf.Graph, library: Any, changes: VariableChanges) -> None:
        self._functions = functions_of(library)
        self._changes = changes
        self._exchanging = functions_with(self._functions, lambda node: node.op in EXCHANGES)
        self._numbered = functions_with(self._functions, lambda node: node.op == REPLICA_NUMBER)
        self._made: dict[str, Any] = {}
        self.scope = Scope(lambda name: _node_of(graph, name), self._functions)
        """The graph around the functions."""

    @property
    def made(self) -> list[Any]:
        """The functions made so far, as FunctionDefs."""
        return list(self._made.values())

    def exchanges_inside(self, node: v1.NodeDef) -> bool:
        """Returns whether a node is a call in which replicas read each other."""
        return self._calls(node, self._exchanging)

    def numbers_inside(self, node: v1.NodeDef) -> bool:
        """Returns whether a node is a call that reads the replica's number."""
        return self._calls(node, self._numbered)

    def join(
        self, node: v1.NodeDef, name: str, replicas: Sequence[int], scope: Scope | None = None
    ) -> v1.NodeDef:
        """Returns one call for several replicas, without its inputs."""
        scope = scope or self.scope
        given = given_to_functions(node, scope)
        joint = v1.NodeDef(name=name, op=node.op)
        for key, attr in node.attr.items():
            # Positions among one replica's inputs do not fit the joint ones. Without them a call counts as changing all
            # its variables, which may add dependencies but never removes one.
            if key not in ("_class", "_read_only_resource_inputs"):
                joint.attr[key].CopyFrom(attr)
        for key in _LISTS:
            if key in joint.attr:
                _repeat(joint.attr[key].list, len(replicas))
        for key in _FUNCTIONS:
            if key in joint.attr:
                # The first replica's variables decide the condition of a loop.
                outputs_of = replicas[:1] if key == "cond" else replicas
                for function in (joint.attr[key].func, *joint.attr[key].list.func):
                    if function.name:
                        inner = scope.of_call(function.name, given)
                        function.name = self._joint(function.name, replicas, outputs_of, inner)
        return joint

    def _calls(self, node: v1.NodeDef, functions: set[str]) -> bool:
        if functions.isdisjoint((node.op, *called_functions(node))):
            return False
        if node.op not in _CALLS:
            raise ValueError(
                f"{node.name} ({node.op}) calls a function in which an op reads other TPU cores or "
                "reads the core's number (such as tpu.cross_replica_sum or xla.replica_id). "
                "On emulated cores, these ops may be used only in a condition, a loop or a "
                "tf.function."
            )
        return True

    def _joint(
        self, function: str, replicas: Sequence[int], outputs_of: Sequence[int], scope: Scope
    ) -> str:
        numbers = "_".join(map(str, replicas))
        name = f"{function}_of_cores_{numbers}" + ("" if replicas == outputs_of else "_first")
        if name not in self._made:
            body = _Body(self, self._functions[function], replicas, outputs_of, scope)
            made = body.definition(name, self._changes)
            # The body contains a value of this call's arguments: no other call may use it.
            if scope.asked_outside:
                name = made.signature.name = f"{name}_call{len(self._made)}"
            self._made[name] = made
        return name


# How a function of all replicas is made. The problem: each replica has its own call of
# `tf.cond(apply, lambda: opt.apply(sum(g)))`, and a sum within one can't read the gradients within
# another. The idea: one call of a function that holds the bodies of all replicas, side by side.
# It takes the arguments of replica 0, then those of replica 1, ..., and returns the results in the
# same order:
#   f(g) = CrossReplicaSum(g)   ->   f_of_both(g0, g1) = (s, s), where s = AddN(g0, g1)
# A condition, or the index of a branch, is taken from the first replica alone: it must be the same
# on all, as on a TPU, where a sum in one branch waits until all get there.
# The invariants: the function has every stateful node of the first replica's body, needed or not,
# and of the others' only the nodes that results and exchanges read; the first alone changes
# variables.
class _Body:
    """The FunctionDef of one function of several replicas, growing upstream from its results."""

    def __init__(
        self,
        joint: ReplicatedFunctions,
        function: Any,
        replicas: Sequence[int],
        outputs_of: Sequence[int],
        scope: Scope,
    ) -> None:
        self._scope = scope
        self._joint = joint
        self._function = function
        self._replicas = tuple(replicas)
        self._outputs_of = outputs_of
        self._nodes = {node.name: node for node in function.node_def}
        self._arguments = {argument.name for argument in function.signature.input_arg}
        self._pending: list[tuple[int, str]] = []
        self._asked: set[str] = set()

    def definition(self, name: str, changes: VariableChanges) -> Any:
        original = self._function
        made = type(original)()
        for key, attr in original.attr.items():
            made.attr[key].CopyFrom(attr)
        signature = made.signature
        signature.CopyFrom(original.signature)
        signature.name = name
        del signature.input_arg[:], signature.output_arg[:], signature.control_output[:]
        count = len(original.signature.input_arg)
        for position, replica in enumerate(self._replicas):
            for index, argument in enumerate(original.signature.input_arg):
                signature.input_arg.add().CopyFrom(argument)
                signature.input_arg[-1].name = f"core{replica}_{argument.name}"
                if index in original.arg_attr:
                    # An argument's attributes are listed by its position.
                    made.arg_attr[position * count + index].CopyFrom(original.arg_attr[index])
        for replica in self._outputs_of:
            for output in original.signature.output_arg:
                signature.output_arg.add().CopyFrom(output)
                signature.output_arg[-1].name = f"core{replica}_{output.name}"
                given = self._reference(replica, original.ret[output.name])
                made.ret[signature.output_arg[-1].name] = given
        # All of the first replica's nodes run, since any may be there for its effect; of the
        # others', only those that outputs and exchanges read.
        for node in original.node_def:
            self._name(self._replicas[0], node.name)
        for output, node_name in original.control_ret.items():
            made.control_ret[f"joint/{output}"] = self._name(self._replicas[0], node_name)
            signature.control_output.append(f"joint/{output}")
        while self._pending:
            replica, node_name = self._pending.pop()
            made.node_def.extend(self._copy(replica, self._nodes[node_name], changes))
        return made

    def _name(self, replica: int, node_name: str) -> str:
        """Requests a node's copy and returns its name."""
        node = self._nodes[node_name]
        if node.op in EXCHANGES and cross_replica_ops.same_on_all(node):
            replica = self._senders(node, replica)[0]
        elif self._joint.exchanges_inside(node):
            replica = self._replicas[0]
        name = f"core{replica}/{node_name}"
        if name not in self._asked:
            self._asked.add(name)
            self._pending.append((replica, node_name))
        return name

    def _reference(self, replica: int, reference: str) -> str:
        """Returns the reference that replaces an input of the original."""
        node_name, *output = reference.split(":")
        if node_name in self._arguments:
            return f"core{replica}_{node_name}"
        node = self._nodes[node_name]
        name = self._name(replica, node_name)
        if node.op in EXCHANGES:
            return f"{name}:{cross_replica_ops.result_name(node)}:0"
        if node.op == REPLICA_NUMBER:
            return f"{name}:output:0"
        if self._joint.exchanges_inside(node):
            position = self._replicas.index(replica)
            index = position * _number_of_outputs(node) + int(output[1])
            return f"{name}:{output[0]}:{index}"
        return ":".join([name, *output])

    def _copy(self, replica: int, node: v1.NodeDef, changes: VariableChanges) -> list[v1.NodeDef]:
        name = f"core{replica}/{node.name}"
        data = [given for given in node.input if not given.startswith("^")]
        controls = [given[1:] for given in node.input if given.startswith("^")]
        if node.op in EXCHANGES:
            nodes = cross_replica_ops.exchange(
                node,
                name,
                replica=replica,
                senders=self._senders(node, replica, present=False),
                replicas=self._replicas,
                read=lambda each: self._reference(each, data[0]),
                scatter_dimension=int(self._constant(node, data[2])) if data[2:] else None,
                in_function=True,
            )
        elif node.op == REPLICA_NUMBER:
            nodes = [cross_replica_ops.replica_number(name, replica)]
        elif self._joint.exchanges_inside(node):
            nodes = [self._call(node, name, data, self._replicas)]
        elif self._joint.numbers_inside(node):
            nodes = [self._call(node, name, data, [replica])]
        else:
            copy = v1.NodeDef()
            copy.CopyFrom(node)
            copy.name = name
            copy.attr.pop("_class", None)
            give_seed_of_replica(copy, replica)
            del copy.input[:]
            copy.input.extend(self._reference(replica, given) for given in data)
            nodes = [copy]
        copy = nodes[-1]
        for control in controls:
            # Other control inputs wait for arguments, which exist when the function begins.
            if control in self._nodes:
                # The first replica changes variables for all.
                changed = changes.made_by(self._nodes[control])
                waits_for = self._name(self._replicas[0] if changed else replica, control)
                if f"^{waits_for}" not in copy.input:
                    copy.input.append(f"^{waits_for}")
        return nodes

    def _call(
        self, node: v1.NodeDef, name: str, data: Sequence[str], replicas: Sequence[int]
    ) -> v1.NodeDef:
        call = self._joint.join(node, name, replicas, self._scope)
        deciding = deciding_inputs(node)
        call.input.extend(self._reference(replicas[0], given) for given in data[:deciding])
        for replica in replicas:
            call.input.extend(self._reference(replica, given) for given in data[deciding:])
        return call

    def _senders(self, node: v1.NodeDef, replica: int, *, present: bool = True) -> tuple[int, ...]:
        """Returns the replicas that an exchange reads for one of them; with `present`, only this call's."""
        found = cross_replica_ops.senders(node, self._constant(node, node.input[1]), replica)
        return tuple(each for each in found if each in self._replicas) if present else found

    def _constant(self, node: v1.NodeDef, reference: str) -> np.ndarray:
        value = self._scope.value(reference)
        if value is None:
            raise ValueError(
                f"{node.name} ({node.op}) in the function {self._function.signature.name!r} has "
                "groups of cores that are not constant: give it a list."
            )
        return value


def _node_of(graph: tf.Graph, name: str) -> v1.NodeDef | None:
    try:
        return graph.get_operation_by_name(name).node_def
    except KeyError:
        return None


def _number_of_outputs(node: v1.NodeDef) -> int:
    return len(node.attr["T" if node.op.endswith("While") else "Tout"].list.type)


def _repeat(values: Any, times: int) -> None:
    """Repeats an attribute's list in place."""
    once = type(values)()
    once.CopyFrom(values)
    for _ in range(times - 1):
        values.MergeFrom(once)
