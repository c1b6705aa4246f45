"""Plans the calls of a TPUEstimator: on cores, emulated or real, or as an Estimator's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import tensorflow as tf

from tfx_tpu_trainer.engine.checking.ops_on_emulated_cores import (
    refuse_ops_not_emulated,
    warn_of_ops_for_hosts,
)
from tfx_tpu_trainer.engine.evaluating.evaluation_plan import EvaluationPlan
from tfx_tpu_trainer.engine.feeding.input_pipeline import InputTensors, as_input_tensors
from tfx_tpu_trainer.engine.predicting.prediction import PredictionPlan
from tfx_tpu_trainer.engine.reporting.log_hooks import LossLogHook, ThroughputHook
from tfx_tpu_trainer.engine.sessions.opening import SessionSettings
from tfx_tpu_trainer.engine.sessions.tpu_system import TPUSystem, find_tpu_system
from tfx_tpu_trainer.engine.training.training import TrainingPlan
from tfx_tpu_trainer.estimator import strategy_plans, user_calls
from tfx_tpu_trainer.estimator.call_planner import CallPlanner
from tfx_tpu_trainer.estimator.callables import takes
from tfx_tpu_trainer.estimator.mode_keys import ModeKeys
from tfx_tpu_trainer.estimator.strategy_plans import Loops, StrategyCall
from tfx_tpu_trainer.estimator.tpu import core_plans
from tfx_tpu_trainer.estimator.tpu.core_run import (
    CoreRun,
    CoreTrace,
    plan_core_run,
    share_of_replica,
)
from tfx_tpu_trainer.estimator.tpu.embedding.checks import refuse_embeddings
from tfx_tpu_trainer.estimator.tpu.embedding.trace import trace_with_embeddings
from tfx_tpu_trainer.estimator.tpu.padding import without_padding
from tfx_tpu_trainer.estimator.tpu.run_config import RunConfig
from tfx_tpu_trainer.estimator.tpu.run_place import (
    RunPlace,
    choose_place,
    emulates,
    session_master,
)
from tfx_tpu_trainer.estimator.tpu.tpu_config import (
    InputPipelineConfig,
    TPUConfig,
    check_positive_integer,
    parse_iterations_per_loop,
)

v1 = tf.compat.v1
_logger = tf.get_logger()

_ON_CORES = (RunPlace.EMULATED, RunPlace.TPU)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TPUCallSettings:
    """What a TPUEstimator knows of its calls beyond a RunConfig.

    Attributes:
        on_cores: Mode -> whether it runs on TPU cores.
        batch_sizes: Mode -> global batch size, or `None`.
        batch_axis: The axis of each input tensor to split, or `None`.
        embedding_config_spec: Embeddings of the cores, or `None`.
        report_period: How often loss and throughput are reported, as arguments of the hooks that
            do; `None` switches them off.
        export_options: What an export needs to know of graphs and versions.
    """

    on_cores: Mapping[str, bool]
    batch_sizes: Mapping[str, int | None]
    batch_axis: Sequence[int] | None
    embedding_config_spec: Any
    report_period: Mapping[str, int] | None
    export_options: Mapping[str, Any]


class TPUCallPlanner(CallPlanner):
    """A `CallPlanner` that places on cores what runs there."""

    def __init__(
        self,
        model_fn: Callable[..., Any],
        *,
        config: RunConfig,
        params: Mapping[str, Any],
        settings: TPUCallSettings,
    ) -> None:
        """Takes what all calls share.

        Args:
            model_fn: The model.
            config: The configuration of the runs, complete.
            params: What the user's functions get as `params`, besides what is added to it.
            settings: What the estimator was told of cores and batches.
        """
        super().__init__(model_fn, config=config, params=params)
        self._settings = settings

    @property
    def _tpu_run_config(self) -> RunConfig:
        return cast(RunConfig, self._config)

    @property
    def _tpu_config(self) -> TPUConfig:
        return self._tpu_run_config.tpu_config

    def _place(self, mode: str) -> RunPlace:
        """Decides where a mode runs, and says so.

        When it runs, so that building and exporting need no TPU.
        """
        strategy = self._strategy(mode)
        if self._settings.on_cores[mode] and not emulates(""):
            self._check_one_place(mode, strategy)
        place, reason = choose_place(
            use_tpu=self._settings.on_cores[mode],
            master=self._master_of(mode),
            strategy=strategy,
        )
        if place is not RunPlace.HOST:
            _logger.info("Mode %r runs on %s (%s).", mode, place.value, reason)
        return place

    def _check_one_place(self, mode: str, strategy: tf.distribute.Strategy | None) -> None:
        if strategy_plans.input_context_of(self._config, mode) is not None:
            raise ValueError(
                "use_tpu=True can't run under a ParameterServerStrategy: its workers train "
                "asynchronously, and TPU cores in step. Use use_tpu=False, or leave "
                "train_distribute and eval_distribute out of RunConfig."
            )
        master = self._master_of(mode)
        is_tpus_own = type(strategy).__name__.startswith("TPUStrategy") and not emulates(master)
        if strategy is not None and master and not is_tpus_own:
            raise ValueError(
                f"RunConfig names two places for use_tpu=True: master {master!r} and "
                f"{type(strategy).__name__}. Leave master (cluster) out to run under the strategy, "
                "or train_distribute and eval_distribute to run on the cores of the master."
            )

    def _master_of(self, mode: str) -> str:
        config = self._config
        return config.evaluation_master if mode == ModeKeys.EVAL else config.master

    def _strategy(self, mode: str) -> tf.distribute.Strategy | None:
        if mode == ModeKeys.PREDICT and self._settings.on_cores[mode]:
            return self._config.eval_distribute
        return super()._strategy(mode)

    def session_settings(self, model_dir: str) -> SessionSettings:
        """Returns the settings of every session; emulated cores are in this process."""
        settings = super().session_settings(model_dir)
        return dataclasses.replace(
            settings,
            master=session_master(settings.master),
            evaluation_master=session_master(settings.evaluation_master),
        )

    def export_options(self) -> dict[str, Any]:
        """Returns what an export needs to know of graphs and versions."""
        return dict(self._settings.export_options)

    def call_model_for_export(self, features: Any, labels: Any, mode: str, use_tpu: bool) -> Any:
        """Calls model_fn for an export; see `CallPlanner`."""
        if mode == ModeKeys.PREDICT:
            features = without_padding(features)
        return self._call_with_params(features, labels, mode, added={"use_tpu": use_tpu})

    def _call_input_fn(self, input_fn: Callable[..., Any], mode: str) -> InputTensors:
        sliced = self._tpu_config.eval_training_input_configuration
        if mode != ModeKeys.TRAIN and sliced == InputPipelineConfig.SLICED:
            raise ValueError(
                "Invalid TPUConfig `eval_training_input_configuration` value. SLICED mode only "
                "works on use_tpu = True; leave it out on the host."
            )
        returned = self._call_input_fn_with(
            input_fn,
            mode,
            self._batch_size_param(mode),
            input_context=strategy_plans.input_context_of(self._config, mode),
        )
        return as_input_tensors(returned)

    def _look_for_endless_input(self, inputs: InputTensors) -> None:
        """Says nothing, as the original's TPUEstimator: rows without an end may be meant."""

    def _call_input_fn_with(
        self,
        input_fn: Callable[..., Any],
        mode: str,
        added: Mapping[str, Any],
        input_context: tf.distribute.InputContext | None = None,
    ) -> Any:
        if not takes(input_fn, "params"):
            raise ValueError(
                f"input_fn ({input_fn!r}) does not include params argument, required by "
                'TPUEstimator to pass batch size as params["batch_size"].'
            )
        params = {**self._params, **added}
        return user_calls.call_input_fn(
            input_fn,
            mode=mode,
            params=params,
            config=self._config,
            input_context=input_context,
            required=("params",),
        )

    def call_model_fn(
        self, features: Any, labels: Any, mode: str, config: Any | None = None
    ) -> Any:
        """Calls model_fn on the host; see `CallPlanner`."""
        added = {**self._batch_size_param(mode), "use_tpu": False}
        if mode == ModeKeys.PREDICT:
            features = without_padding(features)
        _logger.info("Running %s on CPU/GPU", mode)
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
        if not takes(self._model_fn, "params"):
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
        batch_size = self._settings.batch_sizes[mode]
        return {} if batch_size is None else {"batch_size": batch_size}

    def check_train_steps(self, steps: int | None, max_steps: int | None) -> None:
        """Checks the steps of a training; on cores there must be some."""
        super().check_train_steps(steps, max_steps)
        if not self._settings.on_cores[ModeKeys.TRAIN]:
            return
        if steps is None and max_steps is None:
            raise ValueError(
                "For TPU training, one of `steps` or `max_steps` must be set. Cannot be both "
                "`None`."
            )
        for name, value in (("Train steps", steps), ("Train max_steps", max_steps)):
            if value is not None:
                check_positive_integer(value, name)

    def check_eval_steps(self, steps: int | None) -> None:
        """Checks the steps of an evaluation."""
        if not self._settings.on_cores[ModeKeys.EVAL] or steps is None:
            super().check_eval_steps(steps)
        else:
            check_positive_integer(steps, "Eval steps")

    def plan_training(
        self, input_fn: Callable[..., Any], *, steps: int | None, max_steps: int | None
    ) -> tuple[TrainingPlan, list[v1.train.SessionRunHook]]:
        """Plans training where it runs; see `CallPlanner`."""
        mode = ModeKeys.TRAIN
        place = self._place(mode)
        if place in _ON_CORES:
            run, trace = self._trace_to_run(input_fn, mode, place)
            plan = core_plans.plan_training(
                run, trace, loops=self._loops(), steps=steps, max_steps=max_steps
            )
            hooks = [*core_plans.system_hooks(run), *trace.hooks]
        else:
            plan, hooks = super().plan_training(input_fn, steps=steps, max_steps=max_steps)
        if self._settings.report_period is not None and place is not RunPlace.HOST:
            hooks = [*hooks, self._loss_log(plan, self._settings.report_period)]
        if self._settings.report_period is not None:
            summaries_on = bool(self._config.save_summary_steps)
            throughput = ThroughputHook(
                **self._settings.report_period,
                steps_per_call=plan.steps_per_call,
                batch_size=self._settings.batch_sizes[mode],
                output_dir=self._config.model_dir if summaries_on else None,
            )
            hooks = [*hooks, throughput]
        return plan, hooks

    def _loss_log(self, plan: TrainingPlan, period: Mapping[str, int]) -> LossLogHook:
        loop = parse_iterations_per_loop(self._tpu_config.iterations_per_loop)
        if loop.unit == "count":
            # The original's period is one of global steps for the rates, one of calls for the loss.
            period = {"every_n_calls": period["every_n_steps"]}
        return LossLogHook(
            plan.loss, steps_per_call=plan.steps_per_call, shows_step_reached=True, **period
        )

    def plan_evaluation(
        self, input_fn: Callable[..., Any], *, steps: int | None
    ) -> tuple[EvaluationPlan, list[v1.train.SessionRunHook]]:
        """Plans an evaluation where it runs; see `CallPlanner`."""
        place = self._place(ModeKeys.EVAL)
        if place not in _ON_CORES:
            return super().plan_evaluation(input_fn, steps=steps)
        run, trace = self._trace_to_run(input_fn, ModeKeys.EVAL, place)
        plan = core_plans.plan_evaluation(run, trace, steps=steps)
        return plan, _session_hooks(run, trace)

    def plan_prediction(
        self, input_fn: Callable[..., Any], predict_keys: Sequence[str] | str | None
    ) -> tuple[PredictionPlan, list[v1.train.SessionRunHook]]:
        """Plans a prediction where it runs; see `CallPlanner`."""
        place = self._place(ModeKeys.PREDICT)
        if place not in _ON_CORES:
            return super().plan_prediction(input_fn, predict_keys)
        run, trace = self._trace_to_run(input_fn, ModeKeys.PREDICT, place)
        plan = core_plans.plan_prediction(run, trace, predict_keys)
        return plan, _session_hooks(run, trace)

    def trace_for_cores(self, input_fn: Callable[..., Any], mode: str) -> tuple[CoreRun, CoreTrace]:
        """Traces a call in the default graph as it runs on cores, without a TPU and unplanned.

        Args:
            input_fn: As the estimator takes it.
            mode: One of `ModeKeys`.

        Returns:
            How the call would run, and the model traced on one replica's inputs.
        """
        return self._trace_on_cores(input_fn, mode, RunPlace.EMULATED)

    def _trace_to_run(
        self, input_fn: Callable[..., Any], mode: str, place: RunPlace
    ) -> tuple[CoreRun, CoreTrace]:
        run, trace = self._trace_on_cores(input_fn, mode, place)
        if place is RunPlace.EMULATED:
            refuse_ops_not_emulated(trace.template)
            warn_of_ops_for_hosts(trace.template)
        return run, trace

    def _trace_on_cores(
        self, input_fn: Callable[..., Any], mode: str, place: RunPlace
    ) -> tuple[CoreRun, CoreTrace]:
        run = plan_core_run(
            mode,
            config=self._tpu_run_config,
            global_batch_size=self._settings.batch_sizes[mode],
            batch_axis=self._settings.batch_axis,
            system=self._find_tpu_system(mode) if place is RunPlace.TPU else None,
        )
        trace = trace_with_embeddings(
            run,
            self._settings.embedding_config_spec,
            call_input_fn=lambda added: self._call_input_fn_with(input_fn, mode, added),
            call_model_fn=lambda features, labels, added: self._call_with_params(
                features, labels, mode, added=added
            ),
        )
        return run, trace

    def _strategy_call(
        self, input_fn: Callable[..., Any], mode: str, strategy: tf.distribute.Strategy
    ) -> StrategyCall:
        if self._settings.on_cores[mode]:
            refuse_embeddings(
                self._settings.embedding_config_spec, "under a tf.distribute strategy"
            )
        replicas = strategy.num_replicas_in_sync
        added = share_of_replica(
            self._settings.batch_sizes[mode],
            replicas=replicas,
            use_tpu=self._settings.on_cores[mode],
        )
        return StrategyCall(
            mode=mode,
            strategy=strategy,
            call_input_fn=lambda context: self._call_input_fn_with(
                input_fn, mode, added, input_context=context
            ),
            call_model_fn=lambda features, labels: self._call_with_params(
                features, labels, mode, added=added
            ),
            sees_strategy=not self._settings.on_cores[mode],
        )

    def _strategy_loops(self) -> Loops | None:
        return self._loops() if self._settings.on_cores[ModeKeys.TRAIN] else None

    def _loops(self) -> Loops:
        return core_plans.plan_loops(
            self._tpu_run_config,
            log_every_n_steps=(self._settings.report_period or {}).get("every_n_steps"),
        )

    def _find_tpu_system(self, mode: str) -> TPUSystem:
        return find_tpu_system(
            self._master_of(mode),
            session_config=self._config.session_config,
            job=self._tpu_config.tpu_job_name,
        )


def _session_hooks(run: CoreRun, trace: CoreTrace) -> list[v1.train.SessionRunHook]:
    """Returns the hooks of a session that evaluates or predicts on cores."""
    return [
        *core_plans.system_hooks(run),
        *trace.hooks,
        *core_plans.variable_check_hooks(run),
    ]
