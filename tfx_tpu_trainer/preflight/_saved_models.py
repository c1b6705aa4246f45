"""Finds an exported model's TPU programs, cuts them out of the host's graph, and lowers them."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator.extending import TPU_TAGS, functions_of, is_outside, ops_on_tpu
from tfx_tpu_trainer.hardware import TpuSpec
from tfx_tpu_trainer.preflight._compiling import CompilerOptions, libtpu_version
from tfx_tpu_trainer.preflight._lowering import lower
from tfx_tpu_trainer.preflight._report import PreflightReport
from tfx_tpu_trainer.preflight._results import Finding, LoweredStep, Problem
from tfx_tpu_trainer.preflight._run import compile_and_report
from tfx_tpu_trainer.preflight._step_graph import (
    AGAIN,
    ByName,
    StepGraph,
    dtype_of,
    nodes_of_function,
    op_of,
    results_of_function,
    static_shape,
    upstream,
)
from tfx_tpu_trainer.serving import find_saved_model, meta_graph_with, place_ops, read_saved_model

v1 = tf.compat.v1

_TPU_CALL = "TPUPartitionedCall"
_CALLS = ("BatchFunction", "PartitionedCall", "StatefulPartitionedCall")
_VARIABLE = "VarHandleOp"
_OUTPUT_MARK = "_tpu_output_identity"


def preflight_saved_model(
    path: str,
    *,
    tpu: TpuSpec | str,
    batch_size: int,
    signatures: Sequence[str] | None = None,
    options: CompilerOptions | None = None,
) -> PreflightReport:
    """Compiles the TPU programs of an exported model, as a server runs them on one TPU device.

    Examples:
        >>> from tfx_tpu_trainer.estimator import export, tpu
        >>> from tfx_tpu_trainer.preflight import preflight_saved_model
        >>> import tensorflow as tf
        >>> def model_fn(features, labels, mode, params):
        ...     weight = tf.compat.v1.get_variable("weight", [4, 1])
        ...     prediction = features["x"] @ weight
        ...     step = tf.compat.v1.train.get_global_step()
        ...     train_op = tf.compat.v1.assign_add(step, 1)
        ...     return tpu.TPUEstimatorSpec(
        ...         mode, predictions={"y": prediction}, loss=tf.reduce_mean(prediction), train_op=train_op
        ...     )
        >>> def input_fn(params):
        ...     rows = tf.data.Dataset.from_tensors({"x": tf.ones([4])})
        ...     return rows.repeat().batch(params["batch_size"], drop_remainder=True)
        >>> config = tpu.RunConfig(
        ...     model_dir="runs/served", master="emulated", tpu_config=tpu.TPUConfig(num_shards=2)
        ... )
        >>> estimator = tpu.TPUEstimator(model_fn, config=config, train_batch_size=2)
        >>> estimator = estimator.train(input_fn, max_steps=1)
        >>> receiver_fn = export.build_raw_serving_input_receiver_fn({"x": tf.TensorSpec([None, 4])})
        >>> path = estimator.export_saved_model("exported", receiver_fn).decode()
        >>> report = preflight_saved_model(path, tpu="v5e:1x1", batch_size=8)
        >>> report.ok, report.steps[0].name
        (True, 'serve:serving_default')

    Args:
        path: The SavedModel, a folder of versions, or the uri of a Model artifact.
        tpu: The slice, such as `"v5e:1x1"`.
        batch_size: Rows of a batch of requests.
        signatures: Names of signatures. Defaults to `None`: all.
        options: How the compiler is run. Defaults to `CompilerOptions()`.

    Returns:
        The report, with a step for each program.

    Raises:
        FileNotFoundError: If the SavedModel does not exist.
        ValueError: If no part of it runs on a TPU, or an argument is invalid.
        PreflightUnavailableError: If no TPU compiler is available, or it lacks that slice.
    """
    tpu_slice = TpuSpec.read(tpu).tpu_slice
    compiler = libtpu_version((options or CompilerOptions()).libtpu_path)
    lowered = lower_saved_model(path, batch_size=batch_size, signatures=signatures)
    return compile_and_report(
        lowered, tpu_slice=tpu_slice, name=path, compiler=compiler, options=options
    )


def lower_saved_model(
    path: str, *, batch_size: int, signatures: Sequence[str] | None = None
) -> tuple[LoweredStep, ...]:
    """Lowers the part of a SavedModel's metagraph `serve`, `tpu` that runs on a TPU.

    The host's part is left out: parsing, batching, and ops that `outside_compilation` keeps there.

    Args:
        path: The SavedModel, or a path for `find_saved_model`.
        batch_size: Rows of a request, or of a batch of requests. Programs have fixed shapes, so each batch size makes
            another one.
        signatures: Names of signatures. Defaults to `None`: all.

    Returns:
        A step for each program, named `"serve:SIGNATURE"`; signatures that share one are joined by commas.

    Raises:
        FileNotFoundError: If there is no SavedModel.
        ValueError: If it lacks the metagraph or a signature, or no part of it runs on a TPU.
    """
    saved_model = read_saved_model(find_saved_model(path))
    meta_graph = meta_graph_with(saved_model, TPU_TAGS)
    if meta_graph is None:
        there = " and ".join(str(list(m.meta_info_def.tags)) for m in saved_model.meta_graphs)
        raise ValueError(
            f"The SavedModel at {path} has no metagraph with the tags {list(TPU_TAGS)}: it has "
            f"{there}. Export with export_to_tpu=True."
        )
    chosen = _chosen(meta_graph, signatures, path)
    return lower_meta_graph(
        meta_graph, batch_size=batch_size, signatures=chosen, called=f"the SavedModel at {path}"
    )


def lower_meta_graph(
    meta_graph: v1.MetaGraphDef,
    *,
    batch_size: int,
    signatures: Sequence[str] | None = None,
    called: str = "the model",
) -> tuple[LoweredStep, ...]:
    """Lowers the part of a metagraph for TPU hosts that runs on a TPU.

    Args:
        meta_graph: The metagraph, with the shapes of its tensors.
        batch_size: As in `lower_saved_model`.
        signatures: Names of its signatures. Defaults to `None`: all.
        called: Its name in messages.

    Returns:
        As in `lower_saved_model`.

    Raises:
        ValueError: If no part of it runs on a TPU.
    """
    chosen = sorted(meta_graph.signature_def) if signatures is None else signatures
    programs, users = _programs(meta_graph, chosen)
    if not programs:
        raise ValueError(
            f"Nothing of {called} runs on a TPU: call tf.compat.v1.tpu.rewrite in "
            "model_fn, or export with export_saved_model_api_version=1."
        )
    findings = _host_findings(meta_graph)
    return tuple(
        _lower(f"serve:{','.join(users[name])}", program, meta_graph, batch_size, findings)
        for name, program in programs.items()
    )


def _chosen(meta_graph: v1.MetaGraphDef, signatures: Sequence[str] | None, path: str) -> list[str]:
    there = sorted(meta_graph.signature_def)
    for name in signatures or ():
        if name not in there:
            raise ValueError(f"The SavedModel at {path} has no signature {name!r}: it has {there}.")
    return there if signatures is None else list(signatures)


def _programs(
    meta_graph: v1.MetaGraphDef, signatures: Sequence[str]
) -> tuple[dict[str, TpuProgram], dict[str, list[str]]]:
    """Returns the programs by function name, and the signatures that use each."""
    programs: dict[str, TpuProgram] = {}
    users: dict[str, list[str]] = collections.defaultdict(list)
    for signature in signatures:
        outputs = [info.name for info in meta_graph.signature_def[signature].outputs.values()]
        for program in find_programs(meta_graph.graph_def, [name for name in outputs if name]):
            programs[program.function] = program
            if signature not in users[program.function]:
                users[program.function].append(signature)
    return programs, users


def _lower(
    name: str,
    program: TpuProgram,
    meta_graph: v1.MetaGraphDef,
    batch_size: int,
    findings: tuple[Finding, ...],
) -> LoweredStep:
    graph_def = v1.GraphDef(
        node=program.nodes,
        library=meta_graph.graph_def.library,
        versions=meta_graph.graph_def.versions,
    )
    inputs = {tensor: _in_batch(spec, batch_size) for tensor, spec in program.inputs.items()}
    open_inputs = [tensor for tensor, spec in inputs.items() if not spec.shape.is_fully_defined()]
    if open_inputs:
        return _open_input(name, open_inputs[0], inputs[open_inputs[0]], batch_size, findings)
    step = StepGraph(
        name=name,
        graph_def=graph_def,
        inputs=inputs,
        outputs=program.outputs,
        rows=batch_size,
        findings=findings,
    )
    return lower(step)


def _in_batch(spec: tf.TensorSpec, batch_size: int) -> tf.TensorSpec:
    """Returns the spec with a full batch, if axis 0 is open."""
    if spec.shape.rank and spec.shape[0] is None:
        return tf.TensorSpec([batch_size, *spec.shape[1:]], spec.dtype)
    return spec


def _open_input(
    name: str, tensor: str, spec: tf.TensorSpec, batch_size: int, findings: tuple[Finding, ...]
) -> LoweredStep:
    return LoweredStep(
        name=name,
        hlo=b"",
        num_replicas=1,
        rows=batch_size,
        findings=findings,
        # A server's TPU may compile it for the shapes of each request, which are unknown here.
        problem=Problem(
            stage="set-up",
            op_name=tensor.split(":")[0],
            message=(
                f"The host passes {tensor!r} to the TPU without a static shape: {spec.shape}."
            ),
            advice=(
                "Give features static shapes, except for the batch, in the "
                "serving_input_receiver_fn, and results of outside_compilation by "
                "tensor.set_shape inside its function."
            ),
        ),
    )


def _host_findings(meta_graph: v1.MetaGraphDef) -> tuple[Finding, ...]:
    placement = place_ops(meta_graph)
    kept = ", ".join(f"{count} {op}" for op, count in placement.outside_compilation.items())
    places = (
        (kept, "Kept on the host by outside_compilation"),
        (", ".join(placement.beside), "In the TPU call's function, but on the host"),
        (", ".join(placement.after), "Computed on the host, after the TPU"),
    )
    return tuple(
        Finding(
            kind="host_op",
            message=f"{what}: {ops}. Each crossing costs a transfer in every request.",
        )
        for ops, what in places
        if ops
    )


@dataclasses.dataclass(frozen=True)
class TpuProgram:
    """A program that the host runs on a TPU."""

    function: str  # its function's name
    # The nodes that run on the TPU, and the variables they read; no strings.
    nodes: tuple[v1.NodeDef, ...]
    # Name of a tensor from the host -> its shape and dtype as far as known.
    inputs: Mapping[str, tf.TensorSpec]
    outputs: tuple[str, ...]  # names of the tensors for the host


def find_programs(graph_def: v1.GraphDef, outputs: Sequence[str]) -> Iterator[TpuProgram]:
    """Finds the programs upstream of a graph's outputs."""
    functions = ByName(functions_of(graph_def.library))
    called: set[str] = set()
    pending = [(ByName((node.name, node) for node in graph_def.node), outputs)]
    while pending:
        nodes, wanted = pending.pop()
        for node in (nodes[name] for name in upstream(nodes, wanted)):
            name = node.attr["f"].func.name
            # A program may be nested in functions: calls are followed to the TPU's.
            if (node.op != _TPU_CALL and node.op not in _CALLS) or name in called:
                continue
            called.add(name)
            function = functions[name]
            body = ByName((each.name, each) for each in nodes_of_function(function))
            _hand_in_variables(function, node, nodes, body)
            if node.op == _TPU_CALL:
                yield _cut(function, body)
            else:
                pending.append((body, results_of_function(function)))


def _hand_in_variables(
    function: Any,
    call: v1.NodeDef,
    nodes: Mapping[str, v1.NodeDef],
    body: dict[str, v1.NodeDef],
) -> None:
    """Replaces a call's variable arguments by the variables."""
    for argument, source in zip(function.signature.input_arg, call.input):
        given = nodes[op_of(source)]
        if given.op == _VARIABLE:
            variable = v1.NodeDef()
            variable.CopyFrom(given)
            body[argument.name] = variable


def _cut(function: Any, body: Mapping[str, v1.NodeDef]) -> TpuProgram:
    """Cuts out the part that runs on the TPU, and lists the tensors that enter and leave it."""
    # Only its nodes' marks identify a program. A tensor from an unmarked node to a marked one is an input, the reverse
    # an output; constants and variables are copied in.
    kept = {name for name, node in body.items() if _runs_on_tpu(node)}
    variables = {name: node for name, node in body.items() if node.op == _VARIABLE}
    # A variable keeps its name, which messages should use, unless an op has the same.
    called = {
        name: node.name if node.name not in kept else name for name, node in variables.items()
    }
    nodes: dict[str, v1.NodeDef] = {}
    inputs: dict[str, tf.TensorSpec] = {}
    for name in (each for each in body if each in kept):
        node = v1.NodeDef()
        node.CopyFrom(body[name])
        del node.input[:]
        for source in body[name].input:
            origin = op_of(source)
            if source.startswith("^"):
                if origin in kept:
                    node.input.append(source)
            elif origin in variables:
                variable = nodes.setdefault(called[origin], v1.NodeDef())
                variable.CopyFrom(variables[origin])
                variable.name = called[origin]
                node.input.append(called[origin])
            else:
                producer, tensor = _through_border(source, body)
                if producer.name in kept:
                    node.input.append(tensor)
                elif producer.op == "Const":
                    constant = nodes.setdefault(producer.name, v1.NodeDef())
                    constant.CopyFrom(producer)
                    del constant.input[:]
                    node.input.append(producer.name)
                else:
                    index = _index_of(tensor)
                    inputs[f"{producer.name}:{index}"] = tf.TensorSpec(
                        static_shape(producer, index), dtype_of(producer, index)
                    )
                    node.input.append(tensor)
        nodes[name] = node
    outputs = {
        f"{op_of(source)}:{_index_of(source)}": None
        for name, node in body.items()
        if name not in kept
        for source in node.input
        if not source.startswith("^") and op_of(source) in kept
    }
    return TpuProgram(function.signature.name, tuple(nodes.values()), inputs, tuple(outputs))


def _runs_on_tpu(node: v1.NodeDef) -> bool:
    marked = ops_on_tpu.ON_TPU_MARK in node.attr and node.op not in ops_on_tpu.SCAFFOLDING
    return marked and not is_outside(node) and _OUTPUT_MARK not in node.attr


def _through_border(source: str, body: Mapping[str, v1.NodeDef]) -> tuple[v1.NodeDef, str]:
    """Finds a `TPUReplicatedInput`'s source: the node and its tensor."""
    passed: set[str] = set()
    while (node := body[op_of(source)]).op == "TPUReplicatedInput":
        if node.name in passed:
            raise ValueError(f"The graph is damaged: {node.name!r} is its own input. {AGAIN}")
        passed.add(node.name)
        source = node.input[0] if node.input else ""
    return node, source


def _index_of(tensor: str) -> int:
    return int(tensor.partition(":")[2] or 0)
