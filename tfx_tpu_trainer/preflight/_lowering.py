"""Lowers a step's graph to HLO, the TPU compiler's input, without memory for its variables.

TensorFlow lowers for this machine's CPU, since it has no other lowering without a TPU. The step's variables are
replaced by new ones without values, so a model far larger than this machine's memory can be lowered.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# A wire format, whose field numbers are stable.
from tensorflow.compiler.xla import xla_data_pb2

from tfx_tpu_trainer.estimator.extending import SUM, called_functions, shardings, tf_private
from tfx_tpu_trainer.preflight._findings import find_in_hlo, find_incompatible_op
from tfx_tpu_trainer.preflight._hlo_module import HloModule
from tfx_tpu_trainer.preflight._refusals import lowering_problem
from tfx_tpu_trainer.preflight._results import LoweredStep, Problem
from tfx_tpu_trainer.preflight._step_graph import StepGraph
from tfx_tpu_trainer.preflight._tf_private_lowering import eager_with_functions

v1 = tf.compat.v1

_VARIABLE = "VarHandleOp"

# The largest chip's memory, with room to spare: larger variables are not considered.
_LARGEST_VARIABLE = 128 << 30

# Attributes on a node's device, colocation and TPU program no longer hold in the new function, and neither do shapes
# inferred in the old graph.
_STALE_ATTRIBUTES = ("_class", "_tpu", "_xla", "_replica", "_cluster", "_output_shapes", "_device_")


def lower(step: StepGraph) -> LoweredStep:
    """Lowers a step to HLO; a step that can't be lowered gets the problem instead."""
    started = time.monotonic()
    nodes = step.needed_nodes()
    variables = [node for node in nodes if node.op == _VARIABLE]
    # Both checks come first: TensorFlow lowers for the CPU, and does not know which ops a TPU lacks or how much memory
    # a chip has.
    problem = find_incompatible_op(step, nodes) or _find_too_large(step, variables)
    hlo, findings = b"", step.findings
    if problem is None:
        try:
            module = HloModule(_lower(step, nodes))
        # TensorFlow's refusal is a finding about the user's model; the report's other steps still count.
        except (tf.errors.OpError, ValueError, TypeError, NotImplementedError) as error:
            problem = lowering_problem(error, step)
        else:
            module.make_readable_by_older_compilers()
            module.name_parameters([*_input_names(step), *(node.name for node in variables)])
            problem = _partition(module, step, nodes)
            hlo = module.serialized() if problem is None else b""
            findings += find_in_hlo(module, step.look_up)
    trained = [node for node in variables if _is_trained(node, step)]
    return LoweredStep(
        name=step.name,
        hlo=hlo,
        num_replicas=step.num_replicas,
        num_partitions=step.num_partitions,
        rows=step.rows,
        parameter_count=sum(_elements(node) for node in trained),
        variable_bytes=sum(_bytes(node) for node in variables),
        findings=findings,
        seconds=time.monotonic() - started,
        problem=problem,
        op_types={node.name: (node.op, step.source_of(node.name)) for node in nodes},
    )


def _lower(step: StepGraph, nodes: Sequence[v1.NodeDef]) -> bytes:
    """Lowers the nodes with TensorFlow; passes on its errors."""
    # Problem: TensorFlow lowers only a tf.function, for a device that is there, with variables that have values. A step
    # is a piece of a graph that was made for TPUs, and its variables may be larger than this machine's memory.
    # Idea: its nodes are imported into a new function for one device. The step's inputs are the arguments, new
    # variables without memory are captured, and TensorFlow is asked for the function's HLO on the CPU. Nothing runs.
    # Invariant: the program's parameters are the inputs in the order of `step.inputs`, then the variables in the order
    # of the nodes. Names, shardings and the bytes of arguments are all written by that order.
    # Example: the placeholder x, the variable kernel and y = x @ kernel become `step_function(x)`, which captures a new
    # kernel: a program of two parameters, x and kernel, that returns y.
    graph_def, functions = _plain_graph(step, nodes)
    shapes = {f"{node.name}:0": _spec(node) for node in nodes if node.op == _VARIABLE}
    with eager_with_functions(functions), valueless_variables(shapes) as handles:
        return _as_function(step, graph_def, handles)


def _as_function(
    step: StepGraph, graph_def: v1.GraphDef, handles: Mapping[str, tf.Tensor]
) -> bytes:
    # `import_graph_def` rejects an `input_map` with a tensor that the graph does not read, but a step may have an
    # unused input.
    present = {tensor for node in graph_def.node for tensor in _read_by(node)}
    wanted = [*step.outputs, *step.targets]

    def step_function(*arguments: tf.Tensor) -> list[tf.Tensor]:
        graph = v1.get_default_graph()
        given = dict(zip(step.inputs, arguments))
        given |= {name: tf_private.capture(graph, handle) for name, handle in handles.items()}
        results = tf.graph_util.import_graph_def(
            graph_def,
            input_map={name: tensor for name, tensor in given.items() if name in present},
            return_elements=[name for name in wanted if name not in given],
            name="",
        )
        made = dict(zip([name for name in wanted if name not in given], results))
        # Ops with side effects come before each result, like a session's targets and fetches. `identity` makes an op
        # for them to precede, even if a result is an argument.
        effects = [made[name] for name in step.targets]
        with tf.control_dependencies(effects):
            return [tf.identity({**given, **made}[name]) for name in step.outputs]

    function = tf.function(step_function, jit_compile=True, autograph=False)
    lowered = function.experimental_get_compiler_ir(*step.inputs.values())
    return lowered(stage="hlo_serialized", platform_name="CPU")


def _plain_graph(
    step: StepGraph, nodes: Sequence[v1.NodeDef]
) -> tuple[v1.GraphDef, list[v1.FunctionDef]]:
    """Returns the nodes as a graph for one device, with functions under unique names."""
    graph_def = v1.GraphDef(versions=step.graph_def.versions)
    graph_def.node.extend(node for node in nodes if node.op != _VARIABLE)
    # Two graphs in a process may have functions with the same name.
    suffix = f"_preflight_{uuid.uuid4().hex}"
    called = _called(nodes, step.functions())
    renamed = {name: name + suffix for name in called}
    functions = []
    for function in called.values():
        copy = graph_def.library.function.add()
        copy.CopyFrom(function)
        copy.signature.name = renamed[function.signature.name]
        functions.append(copy)
    for group in (graph_def.node, *(function.node_def for function in functions)):
        for node in group:
            _make_plain(node, renamed)
    return graph_def, functions


def _called(
    nodes: Iterable[v1.NodeDef], functions: Mapping[str, v1.FunctionDef]
) -> dict[str, v1.FunctionDef]:
    """Returns the functions that nodes call, directly or indirectly."""
    found: dict[str, v1.FunctionDef] = {}
    pending = list(nodes)
    while pending:
        node = pending.pop()
        # Most nodes name a called function in an attribute. Those of TensorFlow 1's `Defun` have its name as their op.
        for name in (node.op, *called_functions(node)):
            if name in functions and name not in found:
                found[name] = functions[name]
                pending += functions[name].node_def
    return found


def _make_plain(node: v1.NodeDef, renamed: Mapping[str, str]) -> None:
    node.device = ""
    for name in [name for name in node.attr if name.startswith(_STALE_ATTRIBUTES)]:
        del node.attr[name]
    node.op = renamed.get(node.op, node.op)
    for attribute in node.attr.values():
        for function in _functions_of(attribute):
            function.name = renamed.get(function.name, function.name)
    if node.op == SUM:
        # CrossReplicaSum can only be lowered for TPUs; this op is equivalent on any device.
        node.op = "XlaAllReduce"
        node.attr["reduce_op"].s = b"Add"
        node.attr["mode"].s = b"CrossReplica"


def _functions_of(attribute: Any) -> Iterator[Any]:
    if attribute.HasField("func"):
        yield attribute.func
    yield from attribute.list.func


def _read_by(node: v1.NodeDef) -> Iterator[str]:
    for source in node.input:
        yield source if ":" in source else f"{source}:0"


def _find_too_large(step: StepGraph, variables: Sequence[v1.NodeDef]) -> Problem | None:
    for node in variables:
        if not _shape(node).is_fully_defined():
            return Problem(
                stage="lowering",
                op_name=node.name,
                op_type=node.op,
                source=step.source_of(node.name),
                message=f"The variable {node.name!r} has no static shape: {_shape(node)}.",
                advice="Give it a static shape; a TPU's memory is laid out before the program starts.",
            )
        if _bytes(node) > _LARGEST_VARIABLE:
            return Problem(
                stage="memory",
                op_name=node.name,
                op_type=node.op,
                source=step.source_of(node.name),
                message=(
                    f"The variable {node.name!r} of shape {_shape(node)} takes "
                    f"{_bytes(node) / 2**30:.1f} GiB on each TPU device, more than any chip has."
                ),
                advice="Make it smaller: fewer rows (hash ids into fewer buckets) or columns.",
            )
    return None


def _partition(module: HloModule, step: StepGraph, nodes: Sequence[v1.NodeDef]) -> Problem | None:
    """Shards a program's inputs and results over a replica's cores; reports a sharding that does not fit."""
    if step.num_partitions > 1:
        of_variables = shardings.variable_shardings(nodes)
        given = [
            shardings.tiled(step.input_partitions[name]) if name in step.input_partitions else None
            for name in step.inputs
        ]
        variables = [node.name for node in nodes if node.op == _VARIABLE]
        module.shard_inputs([*given, *(of_variables.get(name) for name in variables)])
    for instruction in module.instructions():
        if (
            not instruction.HasField("sharding")
            or instruction.sharding.type == xla_data_pb2.OpSharding.TUPLE
        ):
            continue
        name = instruction.metadata.op_name or instruction.name
        wrong = shardings.misfit(
            name, instruction.shape.dimensions, instruction.sharding, cores=step.num_partitions
        )
        if wrong is not None:
            op_type, source = step.look_up(name)
            message, _, advice = wrong.partition(": ")
            return Problem(
                stage="lowering",
                op_name=name,
                op_type=op_type,
                source=source,
                message=f"{message}.",
                advice=f"{advice[:1].upper()}{advice[1:]}",
            )
    return None


def _input_names(step: StepGraph) -> list[str]:
    return list(step.input_names) or [name.split(":")[0] for name in step.inputs]


def _is_trained(node: v1.NodeDef, step: StepGraph) -> bool:
    if step.trained is None:
        return tf.as_dtype(node.attr["dtype"].type).is_floating
    return node.name in step.trained


def _spec(node: v1.NodeDef) -> tf.TensorSpec:
    return tf.TensorSpec(_shape(node), tf.as_dtype(node.attr["dtype"].type))


def _shape(node: v1.NodeDef) -> tf.TensorShape:
    return tf.TensorShape(node.attr["shape"].shape)


def _elements(node: v1.NodeDef) -> int:
    shape = _shape(node)
    return math.prod(shape.as_list()) if shape.is_fully_defined() else 0


def _bytes(node: v1.NodeDef) -> int:
    return _elements(node) * tf.as_dtype(node.attr["dtype"].type).size


@contextlib.contextmanager
def valueless_variables(specs: Mapping[str, tf.TensorSpec]) -> Iterator[dict[str, tf.Tensor]]:
    """Makes variables without values.

    TensorFlow looks up a variable's shape in its value. All values share the pages of one empty file, which are never
    read or written, so they may be larger than this machine's memory.
    """
    largest = max((_value_bytes(spec) for spec in specs.values()), default=0)
    handles: dict[str, tf.Tensor] = {}
    with tempfile.TemporaryFile() as file, tf.device("/CPU:0"):
        file.truncate(max(largest, mmap.PAGESIZE))
        pages = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)
        try:
            for name, spec in specs.items():
                # A unique name in each lowering: a second handle with the same name would be the same resource, with
                # the value and shape of an earlier model's variable.
                handle = tf.raw_ops.VarHandleOp(
                    dtype=spec.dtype,
                    shape=spec.shape,
                    shared_name=f"preflight/{name}/{uuid.uuid4().hex}",
                )
                handles[name] = handle
                tf.raw_ops.AssignVariableOp(resource=handle, value=_value(pages, spec))
            yield handles
        finally:
            for handle in handles.values():
                tf.raw_ops.DestroyResourceOp(resource=handle)


def _value(pages: np.ndarray, spec: tf.TensorSpec) -> tf.Tensor:
    """Returns a tensor backed by the pages, without copying them."""
    if spec.dtype == tf.bool or not _value_bytes(spec):
        # Arbitrary bits are not booleans; such variables are small.
        return tf.zeros(spec.shape, spec.dtype)
    size = spec.dtype.size
    raw = tf.experimental.dlpack.from_dlpack(pages[: _value_bytes(spec)].__dlpack__())
    if size > 1:
        raw = tf.reshape(raw, [-1, size])
    return tf.reshape(tf.bitcast(raw, spec.dtype), spec.shape)


def _value_bytes(spec: tf.TensorSpec) -> int:
    return math.prod(spec.shape.as_list()) * spec.dtype.size
