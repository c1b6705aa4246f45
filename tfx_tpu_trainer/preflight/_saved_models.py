"""The TPU programs of an exported model, lowered."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import tensorflow as tf

from tfx_tpu_trainer.estimator.extending import TPU_TAGS
from tfx_tpu_trainer.preflight._lowering import lower
from tfx_tpu_trainer.preflight._results import Finding, LoweredStep, Problem
from tfx_tpu_trainer.preflight._step_graph import StepGraph
from tfx_tpu_trainer.preflight._tpu_programs import TpuProgram, find_programs
from tfx_tpu_trainer.serving import (
    find_saved_model,
    meta_graph_with,
    place_ops,
    read_saved_model,
)

v1 = tf.compat.v1


def lower_saved_model(
    path: str, *, batch_size: int, signatures: Sequence[str] | None = None
) -> tuple[LoweredStep, ...]:
    """Lowers what the `serve`, `tpu` metagraph of a SavedModel has a TPU run.

    What the host does is left out: parsing, batching, and what `outside_compilation` keeps there.

    Args:
        path: The SavedModel, or a folder that `find_saved_model` takes.
        batch_size: Rows of a request, or of a batch of requests. Programs have fixed shapes: each
            batch size is another one.
        signatures: Names of signatures. Defaults to `None`: all.

    Returns:
        A step for each program, named `"serve:SIGNATURE"`; signatures that share one are named
        with commas between them.

    Raises:
        FileNotFoundError: There is no SavedModel.
        ValueError: It has no such metagraph or signature, or nothing of it runs on a TPU.
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
    """Lowers what a metagraph for TPU hosts has a TPU run.

    Args:
        meta_graph: The metagraph, with the shapes of its tensors.
        batch_size: As of `lower_saved_model`.
        signatures: Names of signatures that it has. Defaults to `None`: all.
        called: What a message calls it.

    Returns:
        As `lower_saved_model`.

    Raises:
        ValueError: Nothing of it runs on a TPU.
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
    """Returns the programs by the names of their functions, and the signatures that use each."""
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
    """Returns the spec with a full batch along axis 0, where that is open."""
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
        parameter_count=0,
        variable_bytes=0,
        findings=findings,
        seconds=0.0,
        # A server's TPU may compile it for the shapes of each request; here they are not known.
        problem=Problem(
            stage="set-up",
            op_name=tensor.split(":")[0],
            op_type=None,
            source=None,
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
            op_name=None,
            op_type=None,
            message=f"{what}: {ops}. Each crossing costs a transfer in every request.",
        )
        for ops, what in places
        if ops
    )
