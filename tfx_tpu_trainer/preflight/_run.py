"""Runs a preflight: lowers the steps of a model, compiles them for a slice and reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import tensorflow as tf

from tfx_tpu_trainer.estimator import ModeKeys
from tfx_tpu_trainer.estimator.extending import call_settings, keras_model_fn
from tfx_tpu_trainer.estimator.tpu import RunConfig, TPUConfig, TPUEstimator
from tfx_tpu_trainer.hardware import Slice, TpuSpec
from tfx_tpu_trainer.preflight._across_slices import check_slices
from tfx_tpu_trainer.preflight._compiling import CompilerOptions, compile_steps
from tfx_tpu_trainer.preflight._engine_steps import (
    InputFn,
    input_fn_of_specs,
    lower_engine_step,
)
from tfx_tpu_trainer.preflight._estimate import time_ops
from tfx_tpu_trainer.preflight._functions import (
    is_keras_model,
    lower_function,
    specs_of_replica,
)
from tfx_tpu_trainer.preflight._libtpu import libtpu_version
from tfx_tpu_trainer.preflight._report import PreflightReport, StepReport
from tfx_tpu_trainer.preflight._results import CompiledStep, LoweredStep
from tfx_tpu_trainer.preflight._saved_models import lower_saved_model
from tfx_tpu_trainer.preflight._xprof import write_profile

ENGINE_STEPS = {"train": ModeKeys.TRAIN, "eval": ModeKeys.EVAL, "predict": ModeKeys.PREDICT}
"""Name of a step of the engine -> its mode."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreflightModel:
    """A model with what it is fed.

    Attributes:
        model_fn: As `TPUEstimator` takes it.
        input_fns: Name of a step (`"train"`, `"eval"`, `"predict"`) -> its input function. They
            are called, as the shapes are in what they return; nothing is read.
        params: What the functions get as `params`, besides what `TPUEstimator` adds.
        config: Configuration of the runs, or `None` for `RunConfig()`.
        name: The model's name in the report.
        batch_axis: As `TPUEstimator` takes it.
        embedding_config_spec: As `TPUEstimator` takes it; see `lower_engine_step`.
    """

    model_fn: Callable[..., Any]
    input_fns: Mapping[str, InputFn]
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    config: RunConfig | None = None
    name: str = "the model"
    batch_axis: Sequence[int] | None = None
    embedding_config_spec: Any = None

    def lower(
        self,
        steps: Sequence[str],
        *,
        batch_sizes: Mapping[str, int],
        spec: TpuSpec,
        num_slices: int = 1,
    ) -> list[LoweredStep]:
        """Lowers steps for the replicas of a slice.

        Args:
            steps: Their names.
            batch_sizes: Name -> rows over all replicas.
            spec: The slice.
            num_slices: Slices that share the rows. Defaults to 1.

        Returns:
            The steps.

        Raises:
            ValueError: If a batch size does not divide, there is no input function, or from the
                model's own functions.
        """
        cores = self.config.tpu_config.num_cores_per_replica if self.config else None
        for step in steps:
            spec.check_batch_size(
                batch_sizes[step],
                num_cores_per_replica=cores,
                num_slices=num_slices,
                name=f"batch size of {step}",
            )
        return [
            lower_engine_step(
                self.model_fn,
                self.input_fns[step],
                ENGINE_STEPS[step],
                batch_size=batch_sizes[step] // num_slices,
                num_replicas=spec.num_replicas(cores),
                params=self.params,
                config=self.config,
                batch_axis=self.batch_axis,
                embedding_config_spec=self.embedding_config_spec,
            )
            for step in steps
        ]


def preflight(
    model: Callable[..., Any] | TPUEstimator | PreflightModel,
    input_fn: InputFn | Mapping[str, InputFn] | None = None,
    *,
    tpu: TpuSpec | str,
    num_slices: int = 1,
    batch_size: int | Mapping[str, int],
    steps: Sequence[str] = ("train", "eval", "predict"),
    params: Mapping[str, Any] | None = None,
    config: RunConfig | None = None,
    name: str | None = None,
    options: CompilerOptions | None = None,
) -> PreflightReport:
    """Compiles a model's steps with Google's TPU compiler, without a TPU, and reports.

    Needs the extra `preflight` (libtpu) on x86-64 Linux. Nothing is trained and nothing is read.

    Examples:
        >>> from tfx_tpu_trainer.estimator import tpu
        >>> from tfx_tpu_trainer.preflight import preflight
        >>> import tensorflow as tf
        >>> def input_fn(params):
        ...     row = (tf.zeros([784]), tf.zeros([], tf.int32))
        ...     rows = tf.data.Dataset.from_tensors(row).repeat()
        ...     return rows.batch(params["batch_size"], drop_remainder=True)
        >>> def model_fn(features, labels, mode, params):
        ...     kernel = tf.compat.v1.get_variable("kernel", [784, 10])
        ...     loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels, features @ kernel)
        ...     optimizer = tpu.CrossShardOptimizer(tf.compat.v1.train.AdamOptimizer())
        ...     train_op = optimizer.minimize(loss, tf.compat.v1.train.get_global_step())
        ...     return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)
        >>> report = preflight(model_fn, input_fn, tpu="v5e:2x4", batch_size=1024, steps=["train"])
        >>> report.ok
        True
        >>> report.steps[0].need_bytes < 16 * 2**30
        True

    Args:
        model: A model_fn as `TPUEstimator` takes it, an estimator, whose params, config,
            `batch_axis` and `embedding_config_spec` are taken, or a `PreflightModel`.
        input_fn: Input function of all steps, or one for each step by its name. Left out where
            the model is a `PreflightModel`.
        tpu: The slice, such as `"v5e:2x4"`.
        num_slices: Slices like it that train one model, joined by the data center's network. Defaults
            to 1.
        batch_size: Rows of a step over all replicas, of all steps or by name.
        steps: Steps to compile. Defaults to training, evaluation and prediction.
        params: What the functions get as `params`. Defaults to the estimator's, or to none.
        config: Configuration of the runs. Defaults to the estimator's, or to `RunConfig()`.
        name: The model's name in the report. Defaults to the model_fn's name.
        options: How the compiler is run. Defaults to `CompilerOptions()`.

    Returns:
        The report. A step that does not compile or does not fit is in it, and no error.

    Raises:
        ValueError: If an argument does not hold, or from the model's own functions.
        PreflightUnavailableError: If no TPU compiler is available, or it lacks that slice.
    """
    spec = TpuSpec.read(tpu)
    check_slices(spec.tpu_slice, num_slices)
    unknown = [step for step in steps if step not in ENGINE_STEPS]
    if unknown or not steps:
        raise ValueError(f"steps={list(steps)}: give any of {', '.join(ENGINE_STEPS)}.")
    compiler = libtpu_version((options or CompilerOptions()).libtpu_path)
    given = _as_model(model, input_fn, steps, params, config, name)
    sizes = batch_size if isinstance(batch_size, Mapping) else dict.fromkeys(steps, batch_size)
    missing = [step for step in steps if step not in sizes or step not in given.input_fns]
    if missing:
        raise ValueError(f"Step {missing[0]!r} needs an input function and a batch size.")
    lowered = given.lower(steps, batch_sizes=sizes, spec=spec, num_slices=num_slices)
    return compile_and_report(
        lowered,
        tpu_slice=spec.tpu_slice,
        num_slices=num_slices,
        name=given.name,
        compiler=compiler,
        options=options,
    )


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
        FileNotFoundError: The SavedModel does not exist.
        ValueError: Nothing of it is for a TPU, or an argument does not hold.
        PreflightUnavailableError: If no TPU compiler is available, or it lacks that slice.
    """
    tpu_slice = TpuSpec.read(tpu).tpu_slice
    compiler = libtpu_version((options or CompilerOptions()).libtpu_path)
    lowered = lower_saved_model(path, batch_size=batch_size, signatures=signatures)
    return compile_and_report(
        lowered, tpu_slice=tpu_slice, name=path, compiler=compiler, options=options
    )


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

    Each replica of the slice runs the function on its own rows. `tf.compat.v1.tpu.cross_replica_sum`
    sums over them; what the function does not sum, each replica has by itself.

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
        function: A `tf.function`, what `tf.function` takes, or a concrete function, such as a signature
            of a loaded SavedModel, with the variables that it uses; or a compiled model of Keras 2 or
            Keras 3, whose training step is compiled, with the gradients summed over the replicas.
        input_signature: A `tf.TensorSpec`, or a nested structure of them, for each argument; of a Keras model: the
            features, and the labels. Shapes are static; the first axis may be open, as in `[None, 128]`: it gets the
            rows of one replica. Defaults to `None`: the function has its own signature.
        tpu: The slice, such as `"v5e:2x4"`.
        num_slices: Slices like it that run the function. Defaults to 1.
        batch_size: Rows of a step over all replicas. Defaults to `None`: no axis is open. A Keras
            model needs it.
        num_cores_per_replica: TPU devices that a replica is spread over, by the annotations of
            `xla_sharding`. Defaults to `None`: one.
        name: Its name in the report. Defaults to the function's name.
        options: How the compiler is run. Defaults to `CompilerOptions()`.

    Returns:
        The report: of one step, `"function"`, or of a Keras model, `"train"`.

    Raises:
        ValueError: If an argument does not hold, or from the function itself.
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
    specs = specs_of_replica(list(input_signature), rows=rows)
    features, labels = (
        tf.nest.map_structure(lambda each: tf.TensorSpec(each.shape[1:], each.dtype), each)
        for each in specs
    )
    return lower_engine_step(
        keras_model_fn(model),
        input_fn_of_specs(features, labels),
        ModeKeys.TRAIN,
        batch_size=rows * replicas,
        num_replicas=replicas,
        config=RunConfig(tpu_config=TPUConfig(num_cores_per_replica=num_cores_per_replica)),
    )


def compile_and_report(
    lowered: Sequence[LoweredStep],
    *,
    tpu_slice: Slice,
    num_slices: int = 1,
    name: str,
    compiler: str | None = None,
    options: CompilerOptions | None = None,
    profile: str | None = None,
) -> PreflightReport:
    """Compiles lowered steps for a slice and reports.

    Args:
        lowered: The steps.
        tpu_slice: The slice.
        num_slices: Slices like it that run the steps. Defaults to 1.
        name: The model's name in the report.
        compiler: What it calls the compiler. Defaults to `None`: it is looked up.
        options: How the compiler is run. Defaults to `CompilerOptions()`.
        profile: Where to write what XProf opens (`_xprof.py`), a run for each step. Defaults to
            `None`: nowhere.

    Returns:
        The report.

    Raises:
        PreflightUnavailableError: If no TPU compiler is available, or it lacks that slice.
        OSError: The profile can't be written.
    """
    options = options or CompilerOptions()
    compiler = compiler or libtpu_version(options.libtpu_path)
    compiled = compile_steps(lowered, tpu_slice, options)
    if profile is not None:
        for step, result in zip(lowered, compiled):
            _write_profile(profile, step, result, tpu_slice)
    return PreflightReport(
        model=name,
        tpu=tpu_slice.name,
        num_replicas=max((step.num_replicas for step in lowered), default=1) * num_slices,
        steps=tuple(
            StepReport.of(step, result, tpu_slice=tpu_slice, num_slices=num_slices)
            for step, result in zip(lowered, compiled)
        ),
        tensorflow=tf.__version__,
        compiler=compiler,
        num_cores_per_replica=max((step.num_partitions for step in lowered), default=1),
        num_slices=num_slices,
    )


def _write_profile(
    folder: str, step: LoweredStep, compiled: CompiledStep, tpu_slice: Slice
) -> None:
    if compiled.problem is None:
        write_profile(
            folder,
            run=f"{step.name}-{tpu_slice.name}",
            program=compiled.program,
            times=time_ops(
                compiled.costs, tpu_slice, num_replicas=step.num_replicas * step.num_partitions
            ),
            tpu_slice=tpu_slice,
            source_of=lambda op_name: step.look_up(op_name)[1],
        )


def _as_model(
    model: Any,
    input_fn: InputFn | Mapping[str, InputFn] | None,
    steps: Sequence[str],
    params: Mapping[str, Any] | None,
    config: RunConfig | None,
    name: str | None,
) -> PreflightModel:
    if isinstance(model, PreflightModel):
        if input_fn is not None or params is not None or config is not None:
            raise ValueError(
                "input_fn, params and config are those of the PreflightModel: leave them out."
            )
        return model if name is None else dataclasses.replace(model, name=name)
    of_estimator: dict[str, Any] = {}
    if isinstance(model, TPUEstimator):
        params = model.params if params is None else params
        config = cast(RunConfig, model.config) if config is None else config
        settings = call_settings(model)
        of_estimator = {
            "batch_axis": settings.batch_axis,
            "embedding_config_spec": settings.embedding_config_spec,
        }
        model = model._model_fn
    if not callable(model):
        raise ValueError(f"model={model!r}: give a model_fn, a TPUEstimator or a PreflightModel.")
    if input_fn is None:
        raise ValueError("input_fn=None: give the function that returns the model's input.")
    input_fns = input_fn if isinstance(input_fn, Mapping) else dict.fromkeys(steps, input_fn)
    return PreflightModel(
        model_fn=model,
        input_fns=input_fns,
        params=params or {},
        config=config,
        name=name or str(getattr(model, "__name__", "the model")),
        **of_estimator,
    )
