"""Sums over cores as they are on one core, where a graph is not copied onto cores.

TensorFlow has no CPU kernel for `CrossReplicaSum`. A graph that a session runs in place has the sum's
readers read its addend: its tensors are in others' hands, so its nodes must stay. One that is
written to a file must have no such node at all: what loads it wants a kernel for each.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.engine import tf_private
from tfx_tpu_trainer.engine.copying.cross_replica_ops import CORE_NUMBER, SUM, core_number
from tfx_tpu_trainer.engine.copying.joint_functions import JointFunctions
from tfx_tpu_trainer.engine.copying.variable_changes import VariableChanges
from tfx_tpu_trainer.engine.graph_nodes import all_nodes

v1 = tf.compat.v1


def bypass_sums(graph: tf.Graph) -> None:
    """Lets what reads a sum over cores, or waits for it, have the sum's addend.

    Args:
        graph: The graph, not run yet; it is changed in place. The sums stay in it, unread.
    """
    for op in graph.get_operations():
        if op.type == SUM:
            total = op.outputs[0]
            for consumer in total.consumers():
                tf_private.replace_consumers_input(consumer, total, addend(total))
        if any(control.type == SUM for control in op.control_inputs):
            waits_for = [addend(c.outputs[0]).op if c.type == SUM else c for c in op.control_inputs]
            tf_private.replace_control_inputs(op, waits_for)
    _bypass_sums_in_functions(graph)


def addend(value: Any) -> Any:
    """Returns what a sum over one core adds up; anything but a sum is given back."""
    while isinstance(value, tf.Tensor) and value.op.type == SUM:
        value = value.op.inputs[0]
    return value


def reads_other_cores(graph_def: v1.GraphDef) -> bool:
    """Tells whether a graph, its functions included, has a sum over cores or asks for the core."""
    return any(node.op in (SUM, CORE_NUMBER) for node in all_nodes(graph_def))


def put_on_one_core(graph_def: v1.GraphDef) -> None:
    """Makes a sum over cores an Identity of its addend, and a core's number 0.

    Args:
        graph_def: The graph, functions included; it is changed in place.
    """
    _put_nodes_on_one_core(graph_def.node)
    for function in graph_def.library.function:
        numbers = [node.name for node in function.node_def if node.op == CORE_NUMBER]
        _put_nodes_on_one_core(function.node_def)
        # In a function an output is referred to by its name, which is another one now.
        renamed = {f"{name}:id:0": f"{name}:output:0" for name in numbers}
        for node in function.node_def if renamed else ():
            node.input[:] = [renamed.get(given, given) for given in node.input]
        for name in list(function.ret) if renamed else ():
            function.ret[name] = renamed.get(function.ret[name], function.ret[name])


def _put_nodes_on_one_core(nodes: Any) -> None:
    for node in nodes:
        if node.op == CORE_NUMBER:
            node.CopyFrom(core_number(node.name, 0))
        elif node.op == SUM:
            # The other input is the groups of cores.
            controls = [name for name in node.input if name.startswith("^")]
            node.op = "Identity"
            node.input[:] = [node.input[0], *controls]
            for name in [name for name in node.attr if name != "T" and not name.startswith("_")]:
                del node.attr[name]


def _bypass_sums_in_functions(graph: tf.Graph) -> None:
    """Replaces functions with a sum inside, where they are called, by what they are on one core."""
    graph_def = graph.as_graph_def()
    functions = JointFunctions(graph, graph_def.library, VariableChanges(graph_def.library))
    calls = [node for node in graph_def.node if functions.exchanges_inside(node)]
    if not calls:
        return
    alone = [functions.join(node, node.name, [0]) for node in calls]
    library = v1.GraphDef(versions=graph_def.versions)
    library.library.function.extend(functions.made)
    tf.graph_util.import_graph_def(library, name="")
    for node in alone:
        op = graph.get_operation_by_name(node.name)
        for name, value in node.attr.items():
            if value.HasField("func") or value.list.func:
                tf_private.set_attribute(op, name, value)
