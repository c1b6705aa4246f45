"""The Estimator with TPU support."""

from __future__ import annotations

import dataclasses
import enum
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import tensorflow as tf

from tfx_tpu_trainer.engine import variable_checks
from tfx_tpu_trainer.engine.evaluation_plan import EvaluationPlan
from tfx_tpu_trainer.engine.input_pipeline import InputTensors, as_input_tensors
from tfx_tpu_trainer.engine.loop_hook import LoopHook, LoopLength, LoopLengthFromTime
from tfx_tpu_trainer.engine.loss_log_hook import LossLogHook
from tfx_tpu_trainer.engine.placement.emulated import place_training_on_cores
from tfx_tpu_trainer.engine.placement.emulated_evaluation import plan_evaluation_on_cores
from tfx_tpu_trainer.engine.placement.emulated_prediction import (
    check_predictions,
    plan_prediction_on_cores,
)
from tfx_tpu_trainer.engine.prediction import PredictionPlan
from tfx_tpu_trainer.engine.sessions import SessionSettings
from tfx_tpu_trainer.engine.throughput_hook import ThroughputHook
from tfx_tpu_trainer.engine.training import TrainingPlan
from tfx_tpu_trainer.estimator import user_calls
from tfx_tpu_trainer.estimator.callables import argument_names, check_model_fn
from tfx_tpu_trainer.estimator.estimator import Estimator
from tfx_tpu_trainer.estimator.mode_keys import ModeKeys
from tfx_tpu_trainer.estimator.predicted_rows import select_predictions
from tfx_tpu_trainer.estimator.tpu.core_run import (
    CoreRun,
    CoreTrace,
    plan_core_run,
    trace_on_cores,
)
from tfx_tpu_trainer.estimator.tpu.padding import without_padding
from tfx_tpu_trainer.estimator.tpu.run_config import RunConfig
from tfx_tpu_trainer.estimator.tpu.run_place import RunPlace, choose_place, session_master
from tfx_tpu_trainer.estimator.tpu.tpu_config import (
    InputPipelineConfig,
    TPUConfig,
    check_positive_integer,
    parse_iterations_per_loop,
)

v1 = tf.compat.v1
_logger = tf.get_logger()

# A loop that lasts some time may have any number of steps.
_MANY_STEPS = 1 << 32
_RESERVED_PARAMS = ("batch_size", "context")


class ExportSavedModelApiVersion(enum.Enum):
    """Who puts the TPU computation into an export: the engine (V1) or model_fn (V2)."""

    V1 = 1
    V2 = 2


class TPUEstimator(Estimator):
    """An `Estimator` with TPU support; mirrors `tf.compat.v1.estimator.tpu.TPUEstimator`.

    The batch sizes are global; input_fn and model_fn find theirs in `params["batch_size"]`,
    and model_fn where it runs in `params["use_tpu"]`.

    Example:
    ```python
    estimator = TPUEstimator(
        model_fn, config=RunConfig(model_dir="runs/model"), use_tpu=False, train_batch_size=64
    )
    estimator.train(lambda params: dataset.batch(params["batch_size"]), max_steps=1000)
    ```
    """

    def __init__(
        self,
        model_fn: Callable[..., Any] | None = None,
        model_dir: str | os.PathLike[str] | None = None,
        config: RunConfig | None = None,
        params: Mapping[str, Any] | None = None,
        use_tpu: bool = True,
        train_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
        batch_axis: Sequence[int] | None = None,
        eval_on_tpu: bool = True,
        export_to_tpu: bool = True,
        export_to_cpu: bool = True,
        warm_start_from: Any = None,
        embedding_config_spec: Any = None,
        export_saved_model_api_version: (
            ExportSavedModelApiVersion | int
        ) = ExportSavedModelApiVersion.V1,
    ) -> None:
        """Checks the arguments and keeps copies of them.

        Args:
            model_fn: Takes `features` and `params` and, if it likes, `labels`, `mode` and
                `config`; returns a `TPUEstimatorSpec` or `EstimatorSpec`.
            model_dir: Folder of checkpoints and events. Defaults to that of `config`, or else
                to a temporary folder.
            config: Configuration of the runs; must be given.
            params: What model_fn and input_fn get as `params`, besides what is added to it;
                `batch_size` and `context` are reserved. Defaults to `None`.
            use_tpu: Whether the model runs on TPU cores. Defaults to `True`: emulated ones with
                `RunConfig(master="emulated")` or TFX_TPU_TRAINER_EMULATE=1 in the environment.
            train_batch_size: Global batch size of training.
            eval_batch_size: Global batch size of evaluation.
            predict_batch_size: Global batch size of prediction.
            batch_axis: For each flattened input tensor, the axis to split over the cores.
                Defaults to `None`, axis 0.
            eval_on_tpu: Whether evaluation runs on the cores too. Defaults to `True`.
            export_to_tpu: Whether an export has a graph for TPUs. Defaults to `True`.
            export_to_cpu: Whether an export has a graph for CPUs. Defaults to `True`.
            warm_start_from: Where first values come from. Defaults to `None`.
            embedding_config_spec: Must be `None`.
            export_saved_model_api_version: 1 or 2, or the enum. Defaults to V1.

        Raises:
            ValueError: If an argument does not hold.
            TypeError: If a batch size is no integer.
        """
        if not isinstance(config, RunConfig):
            raise ValueError(
                "`config` must be provided with type `tpu_config.RunConfig`, of "
                f"tfx_tpu_trainer.estimator.tpu; got {config!r}."
            )
        reserved = [key for key in _RESERVED_PARAMS if key in (params or {})]
        if reserved:
            raise ValueError(
                f"{list(_RESERVED_PARAMS)} are reserved keys but existed in params "
                f"{dict(params or {})}: rename {reserved}."
            )
        check_model_fn(model_fn, params)
        if embedding_config_spec is not None:
            raise ValueError("embedding_config_spec is not supported; leave it out.")
        if use_tpu:
            _check_batch_sizes(train_batch_size, eval_batch_size, predict_batch_size)
            _check_model_parallelism(config)
        elif eval_on_tpu:
            _logger.warning("eval_on_tpu ignored because use_tpu is False.")
        super().__init__(
            model_fn,
            model_dir=model_dir,
            config=config.replace(log_step_count_steps=None),
            params=params,
            warm_start_from=warm_start_from,
        )
        self._report_period = _report_period(config)
        self._batch_sizes = {
            ModeKeys.TRAIN: train_batch_size,
            ModeKeys.EVAL: eval_batch_size,
            ModeKeys.PREDICT: predict_batch_size,
        }
        self._batch_axis = batch_axis
        self._export_to_tpu = export_to_tpu
        self._export_to_cpu = export_to_cpu
        self._export_api_version = _api_version(export_saved_model_api_version)
        self._on_cores = dict.fromkeys(self._batch_sizes, use_tpu)
        self._on_cores[ModeKeys.EVAL] = use_tpu and eval_on_tpu

    @property
    def _tpu_config(self) -> TPUConfig:
        return cast(RunConfig, self._config).tpu_config

    def _place(self, mode: str) -> RunPlace:
        """Decides where a mode runs: when it runs, so that building and exporting need no TPU."""
        return self._place_and_reason(mode)[0]

    def _announce_place(self, mode: str) -> RunPlace:
        """Decides where a mode runs and says so, once for each call."""
        place, reason = self._place_and_reason(mode)
        _logger.info("Mode %r runs on %s (%s).", mode, place.value, reason)
        return place

    def _place_and_reason(self, mode: str) -> tuple[RunPlace, str]:
        return choose_place(use_tpu=self._on_cores[mode], config=cast(RunConfig, self._config))

    def _session_settings(self) -> SessionSettings:
        settings = super()._session_settings()
        return dataclasses.replace(
            settings,
            master=session_master(settings.master),
            evaluation_master=session_master(settings.evaluation_master),
        )

    def _export_options(self) -> dict[str, Any]:
        return {
            "export_to_cpu": self._export_to_cpu,
            "export_to_tpu": self._export_to_tpu,
            "api_version": self._export_api_version,
        }

    def _call_model_for_export(self, features: Any, labels: Any, mode: str, use_tpu: bool) -> Any:
        features = without_padding(features)
        return self._call_with_params(features, labels, mode, added={"use_tpu": use_tpu})

    def _call_input_fn(self, input_fn: Callable[..., Any], mode: str) -> InputTensors:
        sliced = self._tpu_config.eval_training_input_configuration
        if mode != ModeKeys.TRAIN and sliced == InputPipelineConfig.SLICED:
            raise ValueError(
                "Invalid TPUConfig `eval_training_input_configuration` value. SLICED mode only "
                "works on use_tpu = True; leave it out on the host."
            )
        returned = self._call_input_fn_with(input_fn, mode, self._batch_size_param(mode))
        return as_input_tensors(returned)

    def _call_input_fn_with(
        self, input_fn: Callable[..., Any], mode: str, added: Mapping[str, Any]
    ) -> Any:
        if "params" not in argument_names(input_fn):
            raise ValueError(
                f"input_fn ({input_fn!r}) does not include params argument, required by "
                'TPUEstimator to pass batch size as params["batch_size"].'
            )
        params = {**self._params, **added}
        return user_calls.call_input_fn(input_fn, mode=mode, params=params, config=self._config)

    def _call_model_fn(
        self, features: Any, labels: Any, mode: str, config: Any | None = None
    ) -> Any:
        added = {**self._batch_size_param(mode), "use_tpu": False}
        if mode == ModeKeys.PREDICT:
            features = without_padding(features)
        return self._call_with_params(features, labels, mode, added=added, config=config)

    def _call_with_params(
        self,
        features: Any,
        labels: Any,
        mode: str,
        *,
        added: Mapping[str, Any],
        config: Any | None = None,
    ) -> Any:
        if "params" not in argument_names(self._model_fn):
            raise ValueError(
                f"model_fn ({self._model_fn!r}) does not include params argument, required by "
                "TPUEstimator to pass batch size as params['batch_size']."
            )
        return user_calls.call_model_fn(
            self._model_fn,
            features=features,
            labels=labels,
            mode=mode,
            params={**self._params, **added},
            config=config or self._config,
        )

    def _batch_size_param(self, mode: str) -> dict[str, int]:
        batch_size = self._batch_sizes[mode]
        return {} if batch_size is None else {"batch_size": batch_size}

    def _check_train_steps(self, steps: int | None, max_steps: int | None) -> None:
        super()._check_train_steps(steps, max_steps)
        if self._place(ModeKeys.TRAIN) is RunPlace.HOST:
            return
        if steps is None and max_steps is None:
            raise ValueError(
                "For TPU training, one of `steps` or `max_steps` must be set. Cannot be both "
                "`None`."
            )
        for name, value in (("Train steps", steps), ("Train max_steps", max_steps)):
            if value is not None:
                check_positive_integer(value, name)

    def _check_eval_steps(self, steps: int | None) -> None:
        if self._place(ModeKeys.EVAL) is RunPlace.HOST or steps is None:
            super()._check_eval_steps(steps)
        else:
            check_positive_integer(steps, "Eval steps")

    def _plan_training(
        self, input_fn: Callable[..., Any], *, steps: int | None, max_steps: int | None
    ) -> tuple[TrainingPlan, list[v1.train.SessionRunHook]]:
        mode = ModeKeys.TRAIN
        if self._announce_place(mode) is RunPlace.HOST:
            plan, hooks = super()._plan_training(input_fn, steps=steps, max_steps=max_steps)
        else:
            run, trace = self._trace_on_cores(input_fn, mode)
            loop = place_training_on_cores(
                trace.template,
                trace.feed,
                cores=run.cores,
                broadcast=run.broadcast,
                host_call_every_n_steps=(self._tpu_config.experimental_host_call_every_n_steps),
            )
            length, longest = self._loop_length()
            plan = TrainingPlan(
                template=trace.template,
                train_op=loop.loss if run.broadcast else variable_checks.after(loop.loss),
                loss=loop.loss,
                stop_hook=LoopHook(
                    loop.iterations, length=length, steps=steps, max_steps=max_steps
                ),
                steps_per_call=longest,
            )
            hooks = trace.hooks
            if self._report_period is not None:
                reports = LossLogHook(loop.loss, steps_per_call=longest, **self._report_period)
                hooks = [*hooks, reports]
        if self._report_period is not None:
            summaries_on = bool(self._config.save_summary_steps)
            throughput = ThroughputHook(
                **self._report_period,
                steps_per_call=plan.steps_per_call,
                batch_size=self._batch_sizes[mode],
                output_dir=self.model_dir if summaries_on else None,
            )
            hooks = [*hooks, throughput]
        return plan, hooks

    def _plan_evaluation(
        self, input_fn: Callable[..., Any], *, steps: int | None
    ) -> tuple[EvaluationPlan, list[v1.train.SessionRunHook]]:
        if self._announce_place(ModeKeys.EVAL) is RunPlace.HOST:
            return super()._plan_evaluation(input_fn, steps=steps)
        run, trace = self._trace_on_cores(input_fn, ModeKeys.EVAL)
        plan = plan_evaluation_on_cores(
            trace.template, trace.feed, cores=run.cores, broadcast=run.broadcast, steps=steps
        )
        return plan, [*trace.hooks, *_variable_checks(run)]

    def _plan_prediction(
        self, input_fn: Callable[..., Any], predict_keys: Sequence[str] | str | None
    ) -> tuple[PredictionPlan, list[v1.train.SessionRunHook]]:
        if self._announce_place(ModeKeys.PREDICT) is RunPlace.HOST:
            return super()._plan_prediction(input_fn, predict_keys)
        run, trace = self._trace_on_cores(input_fn, ModeKeys.PREDICT)
        check_predictions(trace.template.predictions)
        plan = plan_prediction_on_cores(
            trace.template,
            select_predictions(trace.template.predictions, predict_keys),
            trace.feed,
            trace.is_padding,
            cores=run.cores,
            broadcast=run.broadcast,
        )
        return plan, [*trace.hooks, *_variable_checks(run)]

    def _trace_on_cores(self, input_fn: Callable[..., Any], mode: str) -> tuple[CoreRun, CoreTrace]:
        run = plan_core_run(
            mode,
            config=cast(RunConfig, self._config),
            global_batch_size=self._batch_sizes[mode],
            batch_axis=self._batch_axis,
        )
        trace = trace_on_cores(
            run,
            call_input_fn=lambda added: self._call_input_fn_with(input_fn, mode, added),
            call_model_fn=lambda features, labels, added: self._call_with_params(
                features, labels, mode, added=added
            ),
        )
        return run, trace

    def _loop_length(self) -> tuple[LoopLength | LoopLengthFromTime, int]:
        """Gives how long loops are, and the number of steps that one has at most."""
        meaning = parse_iterations_per_loop(self._tpu_config.iterations_per_loop)
        if meaning.unit == "seconds":
            return LoopLengthFromTime(meaning.value), _MANY_STEPS
        return LoopLength(meaning.value), meaning.value


def _variable_checks(run: CoreRun) -> list[v1.train.SessionRunHook]:
    return [] if run.broadcast else [variable_checks.VariableChecksHook()]


def _check_batch_sizes(train: Any, evaluate: Any, predict: Any) -> None:
    if train is None:
        raise ValueError("`train_batch_size` cannot be `None` when use_tpu is True.")
    check_positive_integer(train, "train_batch_size")
    for name, value in (("eval_batch_size", evaluate), ("predict_batch_size", predict)):
        if value is not None:
            check_positive_integer(value, name)


def _check_model_parallelism(config: RunConfig) -> None:
    tpu_config = config.tpu_config
    per_shard = tpu_config.per_host_input_for_training == InputPipelineConfig.PER_SHARD_V1
    if per_shard and tpu_config.num_cores_per_replica:
        raise ValueError(
            "Model parallelism only supports per host input for training; got "
            f"num_cores_per_replica={tpu_config.num_cores_per_replica} with PER_SHARD_V1. Please "
            "adjust TPUConfig.per_host_input_for_training."
        )


def _report_period(config: RunConfig) -> dict[str, int] | None:
    """Gives how often loss and throughput are reported: the original divides by the loop's length."""
    steps = config.log_step_count_steps
    loop = parse_iterations_per_loop(config.tpu_config.iterations_per_loop)
    if steps is None:
        return None
    if loop.unit == "seconds":
        return {"every_n_secs": loop.value}
    return {"every_n_steps": math.ceil(steps / loop.value)}


def _api_version(version: ExportSavedModelApiVersion | int) -> int:
    if version in (ExportSavedModelApiVersion.V1, 1):
        return 1
    if version in (ExportSavedModelApiVersion.V2, 2):
        return 2
    raise ValueError(f"export_saved_model_api_version should be 1 or 2; got {version!r}.")
