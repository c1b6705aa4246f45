"""Functions that several cores call together, because they sum over cores inside.

A `CrossReplicaSum` in the branch of a condition or in the body of a loop (an optimizer that is
applied every few steps is the common case) adds up what is inside of the calls of all cores. So
these calls become one, of a function that holds every core's copy of the body.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.engine.copying.variable_changes import VariableChanges

v1 = tf.compat.v1

SUM = "CrossReplicaSum"
SEED_STRIDE = 7919
"""Between the op-level seeds of two cores: dropout differs between them, and not between runs."""

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
}


def deciding_inputs(node: v1.NodeDef) -> int:
    """Gives how many of a call's inputs, the first ones, are taken from one core only."""
    return _CALLS[node.op]


def sum_group(name: str, groups: Sequence[Sequence[int]], core: int) -> tuple[int, ...]:
    """Gives the cores that a sum adds up for one of them.

    Raises:
        ValueError: If the core is in no group.
    """
    for group in groups:
        if core in group:
            return tuple(group)
    raise ValueError(f"{name}: core {core} is in no group of the group_assignment {groups}.")


class JointFunctions:
    """Makes joint functions of the functions of a graph."""

    def __init__(self, library: Any, changes: VariableChanges) -> None:
        """Reads the functions.

        Args:
            library: The `library` of a GraphDef.
            changes: Tells which nodes change variables.
        """
        self._functions = {function.signature.name: function for function in library.function}
        self._changes = changes
        self._with_sum: set[str] = set()
        found = True
        while found:
            new = {
                name
                for name, function in self._functions.items()
                if name not in self._with_sum and any(map(self._sums, function.node_def))
            }
            self._with_sum |= new
            found = bool(new)
        self._made: dict[str, Any] = {}

    @property
    def made(self) -> list[Any]:
        """The joint functions made so far, as FunctionDefs."""
        return list(self._made.values())

    def sums_inside(self, node: v1.NodeDef) -> bool:
        """Tells whether a node is a call with a sum over cores inside."""
        return node.op in _CALLS and any(name in self._with_sum for name in _called(node))

    def join(self, node: v1.NodeDef, name: str, cores: Sequence[int]) -> v1.NodeDef:
        """Gives the joint call of some cores, its inputs left out.

        Args:
            node: The call of one core.
            name: Name of the joint call.
            cores: The cores.

        Returns:
            The call. It takes the deciding inputs once, then the others core by core, and gives
            the outputs core by core.
        """
        joint = v1.NodeDef(name=name, op=node.op)
        for key, attr in node.attr.items():
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
                        function.name = self._joint(function.name, cores, outputs_of)
        return joint

    def _sums(self, node: v1.NodeDef) -> bool:
        return node.op == SUM or any(name in self._with_sum for name in _called(node))

    def _joint(self, function: str, cores: Sequence[int], outputs_of: Sequence[int]) -> str:
        numbers = "_".join(map(str, cores))
        name = f"{function}_of_cores_{numbers}" + ("" if cores == outputs_of else "_first")
        if name not in self._made:
            body = _Body(self, self._functions[function], cores, outputs_of)
            self._made[name] = body.definition(name, self._changes)
        return name


class _Body:
    """The FunctionDef of one joint function, growing from what it gives upstream."""

    def __init__(
        self, joint: JointFunctions, function: Any, cores: Sequence[int], outputs_of: Sequence[int]
    ) -> None:
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
        # effect. Of the others only what is read, by their outputs and by the sums.
        for node in original.node_def:
            self._name(self._cores[0], node.name)
        for output, node_name in original.control_ret.items():
            made.control_ret[f"joint/{output}"] = self._name(self._cores[0], node_name)
            signature.control_output.append(f"joint/{output}")
        while self._pending:
            core, node_name = self._pending.pop()
            made.node_def.append(self._copy(core, self._nodes[node_name], changes))
        return made

    def _name(self, core: int, node_name: str) -> str:
        """Gives the name of a node's copy and asks for it."""
        node = self._nodes[node_name]
        if node.op == SUM:
            core = self._group(node, core)[0]
        elif self._joint.sums_inside(node):
            core = self._cores[0]
        name = f"core{core}/{node_name}"
        if name not in self._asked:
            self._asked.add(name)
            self._pending.append((core, node_name))
        return name

    def _reference(self, core: int, reference: str) -> str:
        """Gives the reference to the copy of what an input of the original refers to."""
        node_name, *output = reference.split(":")
        if node_name in self._arguments:
            return f"core{core}_{node_name}"
        node = self._nodes[node_name]
        name = self._name(core, node_name)
        if node.op == SUM:
            return f"{name}:sum:0"
        if self._joint.sums_inside(node):
            position = self._cores.index(core)
            index = position * _number_of_outputs(node) + int(output[1])
            return f"{name}:{output[0]}:{index}"
        return ":".join([name, *output])

    def _copy(self, core: int, node: v1.NodeDef, changes: VariableChanges) -> v1.NodeDef:
        name = f"core{core}/{node.name}"
        data = [given for given in node.input if not given.startswith("^")]
        controls = [given[1:] for given in node.input if given.startswith("^")]
        if node.op == SUM:
            group = self._group(node, core)
            copy = v1.NodeDef(name=name, op="AddN")
            copy.attr["T"].CopyFrom(node.attr["T"])
            copy.attr["N"].i = len(group)
            copy.input.extend(self._reference(each, data[0]) for each in group)
            return copy
        if self._joint.sums_inside(node):
            copy = self._joint.join(node, name, self._cores)
            deciding = deciding_inputs(node)
            copy.input.extend(self._reference(core, given) for given in data[:deciding])
            for each in self._cores:
                copy.input.extend(self._reference(each, given) for given in data[deciding:])
        else:
            copy = v1.NodeDef()
            copy.CopyFrom(node)
            copy.name = name
            copy.attr.pop("_class", None)
            if "seed2" in copy.attr:
                copy.attr["seed2"].i += core * SEED_STRIDE
            del copy.input[:]
            copy.input.extend(self._reference(core, given) for given in data)
        for control in controls:
            if control in self._nodes:
                # A change of a variable is the first core's for all.
                changed = changes.made_by(self._nodes[control])
                waits_for = self._name(self._cores[0] if changed else core, control)
                if f"^{waits_for}" not in copy.input:
                    copy.input.append(f"^{waits_for}")
        return copy

    def _group(self, node: v1.NodeDef, core: int) -> tuple[int, ...]:
        """Gives those of this call's cores that a sum adds up for one of them."""
        assignment = self._nodes.get(node.input[1].split(":")[0])
        if assignment is None or assignment.op != "Const":
            raise ValueError(
                f"{node.name} in the function {self._function.signature.name!r} sums over groups "
                "of cores that are no constant: give cross_replica_sum a list."
            )
        groups = tf.make_ndarray(assignment.attr["value"].tensor).tolist()
        group = sum_group(node.name, groups, core)
        return tuple(each for each in group if each in self._cores)


def _called(node: v1.NodeDef) -> list[str]:
    """Gives the names of the functions that a node calls."""
    names = []
    for attr in node.attr.values():
        names += [function.name for function in (attr.func, *attr.list.func) if function.name]
    return names


def _number_of_outputs(node: v1.NodeDef) -> int:
    return len(node.attr["T" if node.op in ("While", "StatelessWhile") else "Tout"].list.type)


def _repeat(values: Any, times: int) -> None:
    """Repeats an attribute's list."""
    once = type(values)()
    once.CopyFrom(values)
    for _ in range(times - 1):
        values.MergeFrom(once)
