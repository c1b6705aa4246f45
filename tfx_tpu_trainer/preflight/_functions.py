"""Lowers any TensorFlow function as a step, with its captured variables, such as a Keras model's training step."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator import ModeKeys
from tfx_tpu_trainer.estimator.extending import (
    is_keras_model,
    keras_model_fn,
    source_line,
    tf_private,
)
from tfx_tpu_trainer.estimator.tpu import RunConfig, TPUConfig
from tfx_tpu_trainer.hardware import TpuSpec
from tfx_tpu_trainer.preflight._compiling import CompilerOptions, libtpu_version
from tfx_tpu_trainer.preflight._engine_steps import input_fn_of_specs, lower_engine_step
from tfx_tpu_trainer.preflight._lowering import lower
from tfx_tpu_trainer.preflight._report import PreflightReport
from tfx_tpu_trainer.preflight._results import LoweredStep
from tfx_tpu_trainer.preflight._run import compile_and_report
from tfx_tpu_trainer.preflight._step_graph import StepGraph
from tfx_tpu_trainer.preflight._step_time import check_slices

v1 = tf.compat.v1

_VARIABLE = "VarHandleOp"
_CONCRETE = tf.types.experimental.ConcreteFunction


def preflight_function(
    function: Any,
    input_signature: Sequence[Any] | None = None,
    *,
    tpu: TpuSpec | str,
    num_slices: int = 1,
    batch_size: int | None = None,
    num_cores_per_replica: int | None = None,
    name: str | None = None,
    options: CompilerOptions | None = None,
) -> PreflightReport:
    """Compiles any program of TensorFlow with Google's TPU compiler, without a TPU, and reports.

    Each replica of the slice runs the function on its own rows. `tf.compat.v1.tpu.cross_replica_sum` sums over them;
    without a sum, each replica has its own values.

    Examples:
        >>> from tfx_tpu_trainer.preflight import preflight_function
        >>> import tensorflow as tf
        >>> kernel = tf.Variable(tf.ones([128, 64]))
        >>> @tf.function
        ... def step(x):
        ...     return tf.matmul(x, kernel)
        >>> report = preflight_function(
        ...     step, [tf.TensorSpec([None, 128])], tpu="v5e:2x4", batch_size=1024
        ... )
        >>> report.ok, report.steps[0].name
        (True, 'function')

    Args:
        function: A `tf.function`, an argument of `tf.function`, or a concrete function, such as a signature of a loaded
            SavedModel, with the variables that it uses; or a compiled model of Keras 2 or Keras 3, whose training step
            is compiled, with the gradients summed over the replicas.
        input_signature: A `tf.TensorSpec`, or a nested structure of them, for each argument; for a Keras model, the
            features and the labels. Shapes are static; the first axis may be open, as in `[None, 128]`, and gets the
            rows of one replica. Defaults to `None`: the function has its own signature.
        tpu: The slice, such as `"v5e:2x4"`.
        num_slices: The number of such slices that run the function. Defaults to 1.
        batch_size: Rows of a step over all replicas. Defaults to `None`: no axis is open. A Keras
            model needs it.
        num_cores_per_replica: TPU devices of each replica, for the annotations of `xla_sharding`. Defaults to `None`:
            one.
        name: Its name in the report. Defaults to the function's name.
        options: How the compiler is run. Defaults to `CompilerOptions()`.

    Returns:
        The report, with one step: `"function"`, or for a Keras model `"train"`.

    Raises:
        ValueError: If an argument is invalid, or from the function itself.
        TypeError: The same.
        PreflightUnavailableError: If no TPU compiler is available, or it lacks that slice.
    """
    spec = TpuSpec.read(tpu)
    check_slices(spec.tpu_slice, num_slices)
    replicas = spec.num_replicas(num_cores_per_replica)
    rows = None
    if batch_size is not None:
        spec.check_batch_size(
            batch_size, num_cores_per_replica=num_cores_per_replica, num_slices=num_slices
        )
        rows = batch_size // (replicas * num_slices)
    compiler = libtpu_version((options or CompilerOptions()).libtpu_path)
    name = name or str(getattr(function, "__name__", None) or getattr(function, "name", "function"))
    if is_keras_model(function):
        lowered = _keras_step(function, input_signature, rows, replicas, num_cores_per_replica)
    else:
        lowered = lower_function(
            function,
            input_signature,
            rows=rows,
            num_replicas=replicas,
            num_partitions=num_cores_per_replica or 1,
        )
    return compile_and_report(
        [lowered],
        tpu_slice=spec.tpu_slice,
        num_slices=num_slices,
        name=name,
        compiler=compiler,
        options=options,
    )


def _keras_step(
    model: Any,
    input_signature: Sequence[Any] | None,
    rows: int | None,
    replicas: int,
    num_cores_per_replica: int | None,
) -> LoweredStep:
    if rows is None:
        raise ValueError(
            "batch_size=None: for a Keras model, give the number of rows of a step over all "
            "replicas."
        )
    if input_signature is None or len(input_signature) != 2:
        raise ValueError(
            f"input_signature={input_signature!r}: for a Keras model, give two structures of "
            "tf.TensorSpecs, one for the features and one for the labels."
        )
    specs = _specs_of_replica(list(input_signature), rows=rows)
    features, labels = (
        tf.nest.map_structure(lambda each: tf.TensorSpec(each.shape[1:], each.dtype), each)
        for each in specs
    )
    model_fn, _ = keras_model_fn(model)
    return lower_engine_step(
        model_fn,
        input_fn_of_specs(features, labels),
        ModeKeys.TRAIN,
        batch_size=rows * replicas,
        num_replicas=replicas,
        config=RunConfig(tpu_config=TPUConfig(num_cores_per_replica=num_cores_per_replica)),
    )


def _specs_of_replica(input_signature: Any, *, rows: int | None) -> Any:
    """Returns a signature with one replica's rows if its first axis is open."""

    def closed(spec: Any) -> tf.TensorSpec:
        if not isinstance(spec, tf.TensorSpec):
            raise TypeError(
                f"input_signature holds {spec!r}: give a tf.TensorSpec for each tensor."
            )
        shape = spec.shape
        if shape.rank and shape[0] is None and rows is not None:
            shape = tf.TensorShape([rows, *shape[1:]])
        if not shape.is_fully_defined():
            raise ValueError(
                f"input_signature holds {spec}: a TPU program has static shapes. Leave only the "
                "first axis open, and give batch_size for it."
            )
        return tf.TensorSpec(shape, spec.dtype, name=spec.name)

    return tf.nest.map_structure(closed, input_signature)


def lower_function(
    function: Any,
    input_signature: Sequence[Any] | None = None,
    *,
    rows: int | None = None,
    num_replicas: int = 1,
    num_partitions: int = 1,
) -> LoweredStep:
    """Lowers a TensorFlow function with its captured variables."""
    if not callable(function):
        raise ValueError(f"{function!r} can't be called: give a tf.function or a function.")
    arguments, keywords = _signature_of(function, input_signature)
    if isinstance(function, _CONCRETE):
        # Its own shapes may be open.
        concrete = function
        function = tf.function(
            lambda *args, **keywords: concrete(*args, **keywords), autograph=False
        )
    else:
        # Without the function's own traces, whose shapes may be open and whose sums are over one replica.
        own = getattr(function, "python_function", None)
        function = tf.function(own or function, autograph=own is not None)
    arguments = _specs_of_replica(arguments, rows=rows)
    keywords = _specs_of_replica(keywords, rows=rows)
    # Sums over replicas read their number when they are made.
    with tf_private.replicas(num_replicas):
        graph = function.get_concrete_function(*arguments, **keywords).graph
    return lower(_step_of(graph, rows, num_replicas, num_partitions))


def _signature_of(
    function: Any, input_signature: Sequence[Any] | None
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if input_signature is not None:
        return list(input_signature), {}
    if isinstance(function, _CONCRETE):
        return function.structured_input_signature
    own = getattr(function, "input_signature", None)
    if own is None:
        raise ValueError(
            f"input_signature=None, and {getattr(function, '__name__', function)!r} does not "
            "declare one: give a tf.TensorSpec for each argument, or declare it with "
            "tf.function(input_signature=...)."
        )
    return list(own), {}


def _step_of(graph: Any, rows: int | None, num_replicas: int, num_partitions: int) -> StepGraph:
    graph_def = graph.as_graph_def()
    # In a function's graph a captured variable is an argument of type resource, while a step has variables: each such
    # placeholder becomes a VarHandleOp with the variable's name, which its readers read instead. Example:
    # `Read(placeholder_1)` becomes `Read(kernel)`. Captured tensors, such as constants from outside, stay inputs of the
    # step.
    variables = {id(variable.handle): variable for variable in graph.variables}
    names: dict[str, str] = {}
    taken = {node.name for node in graph_def.node}
    given: dict[str, tf.TensorSpec] = {}
    captured = {id(inner) for _, inner in graph.captures}
    for tensor in graph.inputs:
        if id(tensor) not in captured:
            given[tensor.name] = tf.TensorSpec(tensor.shape, tensor.dtype)
    for outer, inner in graph.captures:
        if inner.dtype == tf.resource:
            if id(outer) not in variables:
                raise ValueError(
                    f"The function uses {outer!r}, which is neither a tensor nor a variable: a TPU "
                    "holds no tables, datasets or summary writers. Use it outside the function."
                )
            names[inner.op.name] = _unused(variables[id(outer)].name.split(":")[0], taken)
        else:
            given[inner.name] = tf.TensorSpec(inner.shape, inner.dtype)
    by_placeholder = {
        inner.op.name: variables[id(outer)]
        for outer, inner in graph.captures
        if inner.op.name in names
    }
    for node in graph_def.node:
        node.input[:] = [_renamed(source, names) for source in node.input]
        if node.name in by_placeholder:
            _make_variable(node, by_placeholder[node.name], names[node.name])
    trained = {id(variable.handle) for variable in graph.trainable_variables}
    return StepGraph(
        name="function",
        graph_def=graph_def,
        inputs=given,
        outputs=[_renamed(each.name, names) for each in graph.outputs if _is_number(each)],
        targets=[each.name for each in graph.control_outputs],
        num_replicas=num_replicas,
        num_partitions=num_partitions,
        rows=rows,
        sources={op.name: source_line(op) for op in graph.get_operations()},
        trained={
            names[placeholder]
            for placeholder, variable in by_placeholder.items()
            if id(variable.handle) in trained
        },
    )


def _is_number(tensor: tf.Tensor) -> bool:
    return tensor.dtype not in (tf.resource, tf.variant)


def _make_variable(node: v1.NodeDef, variable: Any, name: str) -> None:
    node.Clear()
    node.name, node.op = name, _VARIABLE
    node.attr["dtype"].type = variable.dtype.as_datatype_enum
    node.attr["shape"].shape.CopyFrom(variable.shape.as_proto())
    node.attr["shared_name"].s = name.encode()


def _renamed(source: str, names: Mapping[str, str]) -> str:
    """Returns a node's input, or a tensor's name, with its op renamed."""
    control = "^" if source.startswith("^") else ""
    op, colon, index = source.removeprefix("^").partition(":")
    return f"{control}{names.get(op, op)}{colon}{index}"


def _unused(name: str, taken: set[str]) -> str:
    candidates = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(1)))
    unused = next(each for each in candidates if each not in taken)
    taken.add(unused)
    return unused
