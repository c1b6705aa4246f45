"""Functions that several cores call together, because they read each other's values inside.

A `CrossReplicaSum` in the branch of a condition or in the body of a loop (an optimizer that is
applied every few steps is the common case) adds up what is inside of the calls of all cores. So
these calls become one, of a function that holds every core's copy of the body. A function that
only asks for the core's number becomes one of its own for each core.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying import cross_replica_ops
from tfx_tpu_trainer.estimator._engine.copying.cross_replica_ops import (
    CORE_NUMBER,
    EXCHANGES,
    give_seed_of_core,
)
from tfx_tpu_trainer.estimator._engine.copying.static_values import Scope
from tfx_tpu_trainer.estimator._engine.copying.variable_changes import VariableChanges
from tfx_tpu_trainer.estimator._engine.graph_nodes import (
    called_functions,
    functions_of,
    functions_with,
)

v1 = tf.compat.v1

# What a call's attributes are: those that name functions, those that list a type or shape for each
# input or output, and the inputs that decide, which are the same on every core.
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
    """Returns how many of a call's inputs, the first ones, are taken from one core only."""
    return _CALLS[node.op]


def given_to_functions(node: v1.NodeDef, scope: Scope) -> list[str]:
    """Returns what a call's functions are given, as references in the scope that it stands in.

    One is empty where it changes from round to round of a loop.
    """
    given = [each for each in node.input if not each.startswith("^")][_CALLS.get(node.op, 0) :]
    return scope.unchanged(node.attr["body"].func.name, given) if "body" in node.attr else given


class JointFunctions:
    """Makes joint functions of the functions of a graph."""

    def __init__(self, graph: tf.Graph, library: Any, changes: VariableChanges) -> None:
        """Reads the functions."""
        self._functions = functions_of(library)
        self._changes = changes
        self._exchanging = functions_with(self._functions, lambda node: node.op in EXCHANGES)
        self._numbered = functions_with(self._functions, lambda node: node.op == CORE_NUMBER)
        self._made: dict[str, Any] = {}
        self.scope = Scope(lambda name: _node_of(graph, name), self._functions)
        """The graph around the functions."""

    @property
    def made(self) -> list[Any]:
        """The joint functions made so far, as FunctionDefs."""
        return list(self._made.values())

    def exchanges_inside(self, node: v1.NodeDef) -> bool:
        """Tells whether a node is a call in which cores read each other, to be made jointly."""
        return self._calls(node, self._exchanging)

    def numbers_inside(self, node: v1.NodeDef) -> bool:
        """Tells whether a node is a call that differs from core to core, by their numbers."""
        return self._calls(node, self._numbered)

    def join(
        self, node: v1.NodeDef, name: str, cores: Sequence[int], scope: Scope | None = None
    ) -> v1.NodeDef:
        """Returns the joint call of some cores, its inputs left out."""
        scope = scope or self.scope
        given = given_to_functions(node, scope)
        joint = v1.NodeDef(name=name, op=node.op)
        for key, attr in node.attr.items():
            # Places among one core's inputs say nothing of the joint ones. Without them a call
            # counts as changing all its variables, which orders more than it need, never less.
            if key not in ("_class", "_read_only_resource_inputs"):
                joint.attr[key].CopyFrom(attr)
        for key in _LISTS:
            if key in joint.attr:
                _repeat(joint.attr[key].list, len(cores))
        for key in _FUNCTIONS:
            if key in joint.attr:
                # The condition of a loop is decided by the first core's variables.
                outputs_of = cores[:1] if key == "cond" else cores
                for function in (joint.attr[key].func, *joint.attr[key].list.func):
                    if function.name:
                        inner = scope.of_call(function.name, given)
                        function.name = self._joint(function.name, cores, outputs_of, inner)
        return joint

    def _calls(self, node: v1.NodeDef, functions: set[str]) -> bool:
        if functions.isdisjoint((node.op, *called_functions(node))):
            return False
        if node.op not in _CALLS:
            raise ValueError(
                f"{node.name} ({node.op}) calls a function in which an op reads other TPU cores or "
                "asks for the core's number (tpu.cross_replica_sum, xla.replica_id and the like). "
                "On emulated cores, these ops may be used only in a condition, a loop or a "
                "tf.function."
            )
        return True

    def _joint(
        self, function: str, cores: Sequence[int], outputs_of: Sequence[int], scope: Scope
    ) -> str:
        numbers = "_".join(map(str, cores))
        name = f"{function}_of_cores_{numbers}" + ("" if cores == outputs_of else "_first")
        if name not in self._made:
            body = _Body(self, self._functions[function], cores, outputs_of, scope)
            made = body.definition(name, self._changes)
            if scope.asked_outside:
                name = made.signature.name = f"{name}_call{len(self._made)}"
            self._made[name] = made
        return name


class _Body:
    """The FunctionDef of one joint function, growing from what it returns upstream."""

    def __init__(
        self,
        joint: JointFunctions,
        function: Any,
        cores: Sequence[int],
        outputs_of: Sequence[int],
        scope: Scope,
    ) -> None:
        self._scope = scope
        self._joint = joint
        self._function = function
        self._cores = tuple(cores)
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
        for position, core in enumerate(self._cores):
            for index, argument in enumerate(original.signature.input_arg):
                signature.input_arg.add().CopyFrom(argument)
                signature.input_arg[-1].name = f"core{core}_{argument.name}"
                if index in original.arg_attr:
                    made.arg_attr[position * count + index].CopyFrom(original.arg_attr[index])
        for core in self._outputs_of:
            for output in original.signature.output_arg:
                signature.output_arg.add().CopyFrom(output)
                signature.output_arg[-1].name = f"core{core}_{output.name}"
                given = self._reference(core, original.ret[output.name])
                made.ret[signature.output_arg[-1].name] = given
        # Of the first core everything runs that runs in the function: it may be there for its
        # effect. Of the others only what is read, by their outputs and by the exchanges.
        for node in original.node_def:
            self._name(self._cores[0], node.name)
        for output, node_name in original.control_ret.items():
            made.control_ret[f"joint/{output}"] = self._name(self._cores[0], node_name)
            signature.control_output.append(f"joint/{output}")
        while self._pending:
            core, node_name = self._pending.pop()
            made.node_def.extend(self._copy(core, self._nodes[node_name], changes))
        return made

    def _name(self, core: int, node_name: str) -> str:
        """Returns the name of a node's copy and asks for it."""
        node = self._nodes[node_name]
        if node.op in EXCHANGES and cross_replica_ops.same_on_all(node):
            core = self._senders(node, core)[0]
        elif self._joint.exchanges_inside(node):
            core = self._cores[0]
        name = f"core{core}/{node_name}"
        if name not in self._asked:
            self._asked.add(name)
            self._pending.append((core, node_name))
        return name

    def _reference(self, core: int, reference: str) -> str:
        """Returns the reference to the copy of what an input of the original refers to."""
        node_name, *output = reference.split(":")
        if node_name in self._arguments:
            return f"core{core}_{node_name}"
        node = self._nodes[node_name]
        name = self._name(core, node_name)
        if node.op in EXCHANGES:
            return f"{name}:{cross_replica_ops.result_name(node)}:0"
        if node.op == CORE_NUMBER:
            return f"{name}:output:0"
        if self._joint.exchanges_inside(node):
            position = self._cores.index(core)
            index = position * _number_of_outputs(node) + int(output[1])
            return f"{name}:{output[0]}:{index}"
        return ":".join([name, *output])

    def _copy(self, core: int, node: v1.NodeDef, changes: VariableChanges) -> list[v1.NodeDef]:
        name = f"core{core}/{node.name}"
        data = [given for given in node.input if not given.startswith("^")]
        controls = [given[1:] for given in node.input if given.startswith("^")]
        if node.op in EXCHANGES:
            nodes = cross_replica_ops.exchange(
                node,
                name,
                core=core,
                senders=self._senders(node, core, present=False),
                cores=self._cores,
                read=lambda each: self._reference(each, data[0]),
                scatter_dimension=int(self._constant(node, data[2])) if data[2:] else None,
                in_function=True,
            )
        elif node.op == CORE_NUMBER:
            nodes = [cross_replica_ops.core_number(name, core)]
        elif self._joint.exchanges_inside(node):
            nodes = [self._call(node, name, data, self._cores)]
        elif self._joint.numbers_inside(node):
            nodes = [self._call(node, name, data, [core])]
        else:
            copy = v1.NodeDef()
            copy.CopyFrom(node)
            copy.name = name
            copy.attr.pop("_class", None)
            give_seed_of_core(copy, core)
            del copy.input[:]
            copy.input.extend(self._reference(core, given) for given in data)
            nodes = [copy]
        copy = nodes[-1]
        for control in controls:
            if control in self._nodes:
                # A change of a variable is the first core's for all.
                changed = changes.made_by(self._nodes[control])
                waits_for = self._name(self._cores[0] if changed else core, control)
                if f"^{waits_for}" not in copy.input:
                    copy.input.append(f"^{waits_for}")
        return nodes

    def _call(
        self, node: v1.NodeDef, name: str, data: Sequence[str], cores: Sequence[int]
    ) -> v1.NodeDef:
        call = self._joint.join(node, name, cores, self._scope)
        deciding = deciding_inputs(node)
        call.input.extend(self._reference(cores[0], given) for given in data[:deciding])
        for core in cores:
            call.input.extend(self._reference(core, given) for given in data[deciding:])
        return call

    def _senders(self, node: v1.NodeDef, core: int, *, present: bool = True) -> tuple[int, ...]:
        """Returns the cores that an exchange reads for one of them; those of this call, if asked."""
        found = cross_replica_ops.senders(node, self._constant(node, node.input[1]), core)
        return tuple(each for each in found if each in self._cores) if present else found

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
    """Repeats an attribute's list."""
    once = type(values)()
    once.CopyFrom(values)
    for _ in range(times - 1):
        values.MergeFrom(once)
