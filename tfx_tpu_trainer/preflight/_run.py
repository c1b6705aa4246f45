"""Runs a preflight: lowers the steps of a model, compiles them for a slice and reports."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import tensorflow as tf

from tfx_tpu_trainer.estimator import ModeKeys
from tfx_tpu_trainer.estimator.extending import call_settings
from tfx_tpu_trainer.estimator.tpu import RunConfig, TPUEstimator
from tfx_tpu_trainer.hardware import Slice, TpuSpec
from tfx_tpu_trainer.preflight._compiling import CompilerOptions, compile_steps, libtpu_version
from tfx_tpu_trainer.preflight._engine_steps import InputFn, lower_engine_step
from tfx_tpu_trainer.preflight._report import PreflightReport, StepReport
from tfx_tpu_trainer.preflight._results import CompiledStep, LoweredStep
from tfx_tpu_trainer.preflight._step_time import check_slices, time_ops
from tfx_tpu_trainer.preflight._xprof import write_profile

ENGINE_STEPS = {"train": ModeKeys.TRAIN, "eval": ModeKeys.EVAL, "predict": ModeKeys.PREDICT}
"""Name of a step of the engine -> its mode."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreflightModel:
    """A model with its inputs.

    Attributes:
        model_fn: As for `TPUEstimator`.
        input_fns: Name of a step (`"train"`, `"eval"`, `"predict"`) -> its input function. They are called for the
            shapes of their results; nothing is read.
        params: The functions' `params`, without those that `TPUEstimator` adds.
        config: Configuration of the runs, or `None` for `RunConfig()`.
        name: The model's name in the report.
        batch_axis: As for `TPUEstimator`.
        embedding_config_spec: As for `TPUEstimator`; see `lower_engine_step`.
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
            ValueError: If a batch size can't be divided over the replicas, there is no input function, or from the
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
        model: A model_fn as for `TPUEstimator`; an estimator, whose params, config, `batch_axis` and
            `embedding_config_spec` are used; or a `PreflightModel`.
        input_fn: Input function of all steps, or one for each step by its name. Left out for a `PreflightModel`.
        tpu: The slice, such as `"v5e:2x4"`.
        num_slices: The number of such slices that train one model, joined by the data center's network. Defaults to 1.
        batch_size: Rows of a step over all replicas, of all steps or by name.
        steps: Steps to compile. Defaults to training, evaluation and prediction.
        params: The functions' `params`. Defaults to the estimator's, or to none.
        config: Configuration of the runs. Defaults to the estimator's, or to `RunConfig()`.
        name: The model's name in the report. Defaults to the model_fn's name.
        options: How the compiler is run. Defaults to `CompilerOptions()`.

    Returns:
        The report. A step that does not compile or does not fit is reported and is not an error.

    Raises:
        ValueError: If an argument is invalid, or from the model's own functions.
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
        num_slices: The number of such slices that run the steps. Defaults to 1.
        name: The model's name in the report.
        compiler: The compiler's name in the report. Defaults to `None`: it is looked up.
        options: How the compiler is run. Defaults to `CompilerOptions()`.
        profile: Folder for profiles that XProf opens (`_xprof.py`), a run for each step. Defaults to `None`: none are
            written.

    Returns:
        The report.

    Raises:
        PreflightUnavailableError: If no TPU compiler is available, or it lacks that slice.
        OSError: If a profile can't be written.
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
