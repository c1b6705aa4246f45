"""A computation as one TPU program that any core of the host can run; refused where no TPU could."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.graph_nodes import all_nodes, functions_of
from tfx_tpu_trainer.estimator._engine.source_lines import source_line
from tfx_tpu_trainer.estimator.places import ops_on_tpu

v1 = tf.compat.v1


def call_on_tpu(computation: Callable[..., Any], inputs: Sequence[tf.Tensor] = ()) -> Any:
    """Builds a computation, rewritten for the TPU, and calls it once from the default graph."""
    return call_partitioned(lambda: v1.tpu.rewrite(computation, list(inputs)))


def call_partitioned(build: Callable[[], Any]) -> Any:
    """Builds a function and calls it once from the default graph, on a TPU core of the host.

    `TPUPartitionedCall` runs the function on the core which `TPUOrdinalSelector` names: calls go
    round the cores of the host. Variables are made in the default graph, not in the function, so
    that they are saved and restored as those of any graph.

    Nothing here needs a TPU; running the result does.
    """
    structure: Any = None

    def tpu_program() -> list[tf.Tensor]:
        nonlocal structure
        with v1.variable_creator_scope(_make_variable_outside), _nesting_explained():
            built = build()
        tf_private.prune_unconnected_ops(v1.get_default_graph())
        tensors = [value for value in tf.nest.flatten(built) if isinstance(value, tf.Tensor)]
        structure = built if isinstance(built, Mapping) else tensors
        return tensors

    program = tf.function(tpu_program, autograph=False).get_concrete_function()
    if not program.outputs:
        raise ValueError(
            "The computation for the TPU returns no tensor. Return the tensors that the host "
            "should see."
        )
    check_runs_on_tpu(program.graph)
    results = tf.raw_ops.TPUPartitionedCall(
        args=program.captured_inputs,
        device_ordinal=tf.raw_ops.TPUOrdinalSelector(),
        Tout=[output.dtype for output in program.outputs],
        f=program,
    )
    for result, output in zip(results, program.outputs, strict=True):
        result.set_shape(output.shape)
    return tf.nest.pack_sequence_as(structure, results)


@contextlib.contextmanager
def _nesting_explained() -> Iterator[None]:
    try:
        yield
    except NotImplementedError as error:
        already_told = error.__cause__ is not None
        if already_told or "cannot be nested" not in str(error):
            raise
        raise NotImplementedError(
            f"{error}: this computation is already inside one that is rewritten for the TPU. An "
            "export with export_saved_model_api_version=1 rewrites all of model_fn itself, as "
            "runs on cores do. Construct the TPUEstimator with export_saved_model_api_version=2, "
            'and in runs, where model_fn finds params["batch_size"], call the computation '
            "directly."
        ) from error


def _make_variable_outside(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
    """Makes a variable in the graph around the function.

    `next_creator` is left aside: it is that of tf.function, which makes variables of its own kind
    in the function's graph. The creators of the outer graph are asked instead.
    """
    del next_creator
    kwargs.pop("experimental_enable_variable_lifting", None)
    initial_value = kwargs.get("initial_value")
    if isinstance(initial_value, tf.Tensor):
        # A tensor of the function's graph cannot initialise a variable outside of it. It need
        # not: a variable that is exported takes its value from the checkpoint.
        shape, dtype = initial_value.shape, kwargs.get("dtype") or initial_value.dtype
        kwargs["initial_value"] = lambda: tf.zeros(shape, dtype)
    with tf.init_scope():
        return v1.Variable(**kwargs)


_SHOWN = 5


def runs_on_tpu(graph: tf.Graph) -> bool:
    """Tells whether a graph, or a function that it has, has put any op on the TPU."""
    return any(ops_on_tpu.ON_TPU_MARK in node.attr for node in all_nodes(graph.as_graph_def()))


def check_runs_on_tpu(graph: tf.Graph) -> None:
    """Checks the ops that a graph has put on the TPU.

    Strings, tables, datasets and Python functions are found here. Whether the TPU's compiler takes
    all other ops can only be known by compiling.
    """
    definition = graph.as_graph_def()
    functions = functions_of(definition.library)
    refused = []
    for node, caller in ops_on_tpu.nodes_on_tpu(definition.node, functions):
        reason = ops_on_tpu.why_not_on_tpu(node)
        if reason:
            line = source_line(graph.get_operation_by_name(caller.name))
            where = line or "source line unknown"
            part_of = "" if caller is node else f" in {caller.op} {caller.name!r}"
            refused.append(f"{node.op} {node.name!r}{part_of}, which {reason} ({where})")
    if not refused:
        return
    more = f"; and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
    raise ValueError(
        f"The model can't be exported for TPU hosts: no TPU can run {'; '.join(refused[:_SHOWN])}{more}. "
        "Compute this before the model, in Transform or in the serving_input_receiver_fn, or call it "
        "through tf.compat.v1.tpu.outside_compilation(function, *tensors), which keeps it on the "
        "host; or export with export_to_tpu=False."
    )
