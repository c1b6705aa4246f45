"""Calls a computation as one TPU program, on any core of the host, possibly for several requests' rows at once."""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.graph_nodes import all_nodes, functions_of
from tfx_tpu_trainer.estimator._engine.source_lines import shown_source_line
from tfx_tpu_trainer.estimator.places import ops_on_tpu

v1 = tf.compat.v1

# The most ops that an error names.
_SHOWN = 5


def call_on_tpu(computation: Callable[..., Any], inputs: Sequence[tf.Tensor] = ()) -> Any:
    """Builds a computation, rewritten for the TPU, and calls it from the default graph."""
    return call_partitioned(lambda: v1.tpu.rewrite(computation, list(inputs)))


def call_partitioned(build: Callable[[], Any]) -> Any:
    """Builds a function and calls it once from the default graph, on a TPU core of the host."""
    # `TPUPartitionedCall` runs the function on the core that `TPUOrdinalSelector` selects: calls take turns on the
    # host's cores. Variables are made in the default graph instead of in the function, so they are saved and restored
    # like those of any graph. Only running the result needs a TPU.
    # TPUPartitionedCall takes a function and its captured inputs, and returns a flat list: `structure` keeps the
    # nesting of the traced function.
    structure: Any = None

    def tpu_program() -> list[tf.Tensor]:
        nonlocal structure
        with v1.variable_creator_scope(_make_variable_outside), _nesting_explained():
            built = build()
        # Unused ops, such as TF-Hub's, never run, but XLA can't compile some of them. Pruning removes
        # their mark of the TPU program.
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
    """Makes a variable in the graph around the function."""
    # `next_creator` is not used: it is tf.function's, which makes its own kind of variables in the function's graph.
    # The creators of the outer graph are used instead.
    del next_creator
    kwargs.pop("experimental_enable_variable_lifting", None)
    initial_value = kwargs.get("initial_value")
    if isinstance(initial_value, tf.Tensor):
        # A tensor of the function's graph can't initialize a variable outside it, and does not have to: such a variable
        # is restored from the checkpoint.
        shape, dtype = initial_value.shape, kwargs.get("dtype") or initial_value.dtype
        kwargs["initial_value"] = lambda: tf.zeros(shape, dtype)
    # Leaves all functions being traced, down to the export's own graph.
    with tf.init_scope():
        return v1.Variable(**kwargs)


def runs_on_tpu(graph: tf.Graph) -> bool:
    """Returns whether a graph, or one of its functions, put any op on the TPU."""
    return any(ops_on_tpu.ON_TPU_MARK in node.attr for node in all_nodes(graph.as_graph_def()))


def check_runs_on_tpu(graph: tf.Graph) -> None:
    """Checks the ops that a graph put on the TPU."""
    # Strings, tables, datasets and Python functions are found here. For all other ops, only compiling shows whether the
    # TPU's compiler takes them.
    definition = graph.as_graph_def()
    functions = functions_of(definition.library)
    refused = []
    for node, caller in ops_on_tpu.nodes_on_tpu(definition.node, functions):
        reason = ops_on_tpu.why_not_on_tpu(node)
        if reason:
            where = shown_source_line(graph.get_operation_by_name(caller.name))
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


class _BatchFields(NamedTuple):
    num_batch_threads: int
    max_batch_size: int
    batch_timeout_micros: int
    allowed_batch_sizes: Sequence[int] | None
    max_enqueued_batches: int


class BatchConfig(_BatchFields):
    """How requests are combined into batches; mirrors the original's named tuple.

    A TPU compiles a program for each shape that it sees. With `allowed_batch_sizes` batches are padded up to one of
    those sizes, which limits the number of programs.

    Example:
    ```python
    BatchConfig(
        num_batch_threads=4,
        max_batch_size=64,
        batch_timeout_micros=5000,
        allowed_batch_sizes=[8, 64],
    )
    ```
    """

    __slots__ = ()

    def __new__(
        cls,
        num_batch_threads: int,
        max_batch_size: int,
        batch_timeout_micros: int,
        allowed_batch_sizes: Sequence[int] | None,
        max_enqueued_batches: int = 100,
    ) -> BatchConfig:
        """Checks the numbers, which TensorFlow would check only when a server loads the model."""
        for name, value, least in (
            ("num_batch_threads", num_batch_threads, 1),
            ("max_batch_size", max_batch_size, 1),
            ("batch_timeout_micros", batch_timeout_micros, 0),
            ("max_enqueued_batches", max_enqueued_batches, 1),
        ):
            if not _is_integer(value) or value < least:
                raise ValueError(
                    f"{name} must be at least {least}, got: {value!r}. To serve without batching, "
                    "leave the batch_config out."
                )
        sizes = list(allowed_batch_sizes or ())
        if not all(map(_is_integer, sizes)) or (
            sizes and (sizes != sorted(set(sizes)) or sizes[0] < 1 or sizes[-1] != max_batch_size)
        ):
            raise ValueError(
                "allowed_batch_sizes must increase and end with max_batch_size "
                f"({max_batch_size}), got: {sizes}."
            )
        return super().__new__(
            cls,
            num_batch_threads=num_batch_threads,
            max_batch_size=max_batch_size,
            batch_timeout_micros=batch_timeout_micros,
            allowed_batch_sizes=allowed_batch_sizes,
            max_enqueued_batches=max_enqueued_batches,
        )


def _is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def call_in_batches(
    function: Callable[..., Any], inputs: Sequence[tf.Tensor], config: BatchConfig | None
) -> Any:
    """Calls a function of tensors from the default graph, through a `BatchFunction` op."""
    # The op belongs to the model, so it batches in any server.
    if config is None:
        return function(*inputs)
    _check_rows(inputs, "input")
    # `nondifferentiable_batch_function` traces `in_batch` and returns only the op's results; the inner tensors are kept
    # for their shapes.
    made_inside: list[tf.Tensor] = []

    def in_batch(*batch: tf.Tensor) -> Any:
        results = function(*batch)
        made_inside[:] = tf.nest.flatten(results)
        _check_rows(made_inside, "result")
        return results

    results = tf.nondifferentiable_batch_function(**config._asdict(), autograph=False)(in_batch)(
        *inputs
    )
    # The op itself has no shapes. Its rows are those of a request instead of a batch.
    for result, inside in zip(tf.nest.flatten(results), made_inside, strict=True):
        result.set_shape(tf.TensorShape([None]).concatenate(inside.shape[1:]))
    return results


def _check_rows(tensors: Sequence[Any], what: str) -> None:
    for tensor in tensors:
        if not isinstance(tensor, tf.Tensor):
            raise ValueError(
                f"Batching takes dense tensors only, got the {what} {tensor!r}. Make it dense "
                "(tf.sparse.to_dense), or serve without batching."
            )
        if tensor.shape.rank == 0:
            raise ValueError(
                f"The {what} {tensor.name!r} of a batched computation is a scalar: rows of several "
                "requests are concatenated along axis 0. Give it a batch axis."
            )
