"""Replaces the ops between cores in graphs that run on one core, or are written to files.

TensorFlow has no CPU kernel for `CrossReplicaSum` and the other ops between cores. In a graph that a session runs in
place, the nodes must stay, since others hold their tensors; instead, a sum's readers read its addend. A graph in a file
must have none of these nodes, since loading needs a kernel for each.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.copying import cross_replica_ops
from tfx_tpu_trainer.estimator._engine.copying.cross_replica_ops import (
    EXCHANGES,
    REPLICA_NUMBER,
    SUM,
)
from tfx_tpu_trainer.estimator._engine.copying.replicated_functions import (
    ReplicatedFunctions,
    Scope,
    given_to_functions,
)
from tfx_tpu_trainer.estimator._engine.graph_nodes import (
    VariableChanges,
    all_nodes,
    called_functions,
    functions_of,
)

v1 = tf.compat.v1


def bypass_sums(graph: tf.Graph) -> None:
    """Makes ops that read a sum over cores, or wait for it, read or wait for its addend."""
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
    """Returns the addend of a sum over one core; returns any other value unchanged."""
    while isinstance(value, tf.Tensor) and value.op.type == SUM:
        value = value.op.inputs[0]
    return value


def reads_other_cores(graph_def: v1.GraphDef) -> bool:
    """Returns whether a graph, its functions included, has a sum over cores or reads the core's number."""
    return any(node.op in (SUM, REPLICA_NUMBER) for node in all_nodes(graph_def))


def put_on_one_core(graph_def: v1.GraphDef, *, cores: int = 1) -> None:
    """Replaces ops that read other cores by the result that they have if all cores have the same values."""
    # `cores` matters: a model that was traced for several cores divides its loss, and the statistics of shared batch
    # norms, by their number before the sum.
    _OneCore(graph_def, cores).put()


def read_rows_of_one_core(graph_def: v1.GraphDef, sources: Mapping[str, str]) -> None:
    """Makes the placeholders of a core's rows read the first rows of the batches that feed the cores."""
    constants = []
    for node in graph_def.node:
        if node.op == "Placeholder" and node.name in sources:
            sizes = [dim.size for dim in node.attr["shape"].shape.dim]
            bounds = {"begin": [0] * len(sizes), "size": sizes}
            constants += [_constant(f"{node.name}/{part}", bounds[part]) for part in bounds]
            rows = v1.NodeDef(name=node.name, op="Slice")
            rows.input.extend([sources[node.name], *(f"{node.name}/{part}" for part in bounds)])
            rows.attr["T"].type = node.attr["dtype"].type
            rows.attr["Index"].type = tf.int32.as_datatype_enum
            node.CopyFrom(rows)
    graph_def.node.extend(constants)


class OneCoreGraphHook(v1.train.SessionRunHook):
    """Makes every GraphDef of a session's graph one that runs on one core."""

    # A session on cores runs functions. The graph also has the traced model, in which `import_meta_graph` finds tensors
    # by name; but that has ops between cores, for which a host has no kernels, and placeholders for a core's rows,
    # which nothing feeds.

    def __init__(self, *, cores: int, sources: Mapping[str, str] | None = None) -> None:
        self._cores = cores
        self._sources = sources or {}

    def begin(self) -> None:
        """Changes the graph's conversion, once the engine has copied the graph for the cores."""
        graph = v1.get_default_graph()
        if graph.finalized:  # By a session before, with this hook.
            return
        convert = graph.as_graph_def

        def as_graph_def(*args: Any, **kwargs: Any) -> v1.GraphDef:
            graph_def = convert(*args, **kwargs)
            put_on_one_core(graph_def, cores=self._cores)
            read_rows_of_one_core(graph_def, self._sources)
            return graph_def

        graph.as_graph_def = as_graph_def


def _constant(name: str, value: list[int]) -> v1.NodeDef:
    constant = v1.NodeDef(name=name, op="Const")
    constant.attr["dtype"].type = tf.int32.as_datatype_enum
    constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.int32))
    return constant


class _OneCore:
    """Puts a graph on one core, and the functions that it calls."""

    def __init__(self, graph_def: v1.GraphDef, cores: int) -> None:
        self._graph_def = graph_def
        self._cores = range(cores)
        self._functions = functions_of(graph_def.library)
        self._seen: set[str] = set()

    def put(self) -> None:
        nodes = {node.name: node for node in self._graph_def.node}
        self._put(self._graph_def.node, Scope(nodes.get, self._functions), in_function=False)

    def _put(self, nodes: Any, scope: Scope, *, in_function: bool) -> dict[str, str]:
        """Replaces ops; returns the references within a function that have changed, old -> new."""
        # In a graph, an input consists of a node's name and a number, and is valid for any type of
        # op. In a function it also has the output's name in the op's definition:
        #   total:output:0 of a CrossReplicaSum  ->  total:sum:0 of an AddN
        # So readers in a function, and its results, must be changed as well.
        renamed, added = {}, []
        for node in nodes:
            # The type of a TensorFlow 1 call is its function's name.
            for name in (node.op, *called_functions(node)):
                if name in self._functions and name not in self._seen:
                    self._seen.add(name)
                    inner = scope.of_call(name, given_to_functions(node, scope))
                    self._put_function(self._functions[name], inner)
            if node.op == REPLICA_NUMBER:
                renamed[f"{node.name}:id:0"] = f"{node.name}:output:0"
                node.CopyFrom(cross_replica_ops.replica_number(node.name, 0))
            elif node.op == SUM or (node.op in EXCHANGES and len(self._cores) > 1):
                result = cross_replica_ops.result_name(node)
                renamed[f"{node.name}:output:0"] = f"{node.name}:{result}:0"
                *more, last = self._exchange(node, scope, in_function=in_function)
                added += more
                node.CopyFrom(last)
        nodes.extend(added)
        return renamed

    def _put_function(self, function: Any, scope: Scope) -> None:
        renamed = self._put(function.node_def, scope, in_function=True)
        for node in function.node_def if renamed else ():
            node.input[:] = [renamed.get(given, given) for given in node.input]
        for name in list(function.ret) if renamed else ():
            function.ret[name] = renamed.get(function.ret[name], function.ret[name])

    def _exchange(
        self, node: v1.NodeDef, scope: Scope, *, in_function: bool
    ) -> Sequence[v1.NodeDef]:
        data = [given for given in node.input if not given.startswith("^")]
        groups = scope.value(data[1])
        senders: Sequence[int] = self._cores
        if groups is not None and len(self._cores) > 1:
            senders = cross_replica_ops.senders(node, groups, 0)
        dimension = scope.value(data[2]) if data[2:] else None
        made = cross_replica_ops.exchange(
            node,
            node.name,
            replica=0,
            senders=senders,
            replicas=self._cores,
            read=lambda _: data[0],
            scatter_dimension=None if dimension is None else int(dimension),
            in_function=in_function,
        )
        made[-1].input.extend(given for given in node.input if given.startswith("^"))
        return made


def _bypass_sums_in_functions(graph: tf.Graph) -> None:
    """Makes calls of functions with a sum inside call versions of them for one core."""
    graph_def = graph.as_graph_def()
    functions = ReplicatedFunctions(graph, graph_def.library, VariableChanges(graph_def.library))
    calls = [node for node in graph_def.node if functions.exchanges_inside(node)]
    if not calls:
        return
    # A call joined for one core has the same inputs and outputs: the op stays, with other functions.
    alone = [functions.join(node, node.name, [0]) for node in calls]
    library = v1.GraphDef(versions=graph_def.versions)
    library.library.function.extend(functions.made)
    tf.graph_util.import_graph_def(library, name="")
    for node in alone:
        op = graph.get_operation_by_name(node.name)
        for name, value in node.attr.items():
            if value.HasField("func") or value.list.func:
                tf_private.set_attribute(op, name, value)
