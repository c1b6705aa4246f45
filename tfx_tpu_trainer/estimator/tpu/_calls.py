"""The calls of a TPUEstimator: on TPU cores, real or emulated, on the host or under a strategy."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._calls import EstimatorCalls, TrainingReports
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import Loops
from tfx_tpu_trainer.estimator._engine.reporting.log_hooks import LossLogHook, ThroughputHook
from tfx_tpu_trainer.estimator._engine.training.training_plan import TrainingPlan
from tfx_tpu_trainer.estimator._modes import ModeKeys
from tfx_tpu_trainer.estimator._user_calls import check_input_fn
from tfx_tpu_trainer.estimator.places.choice import (
    Kind,
    check_can_be_emulated,
    choose_place,
    emulates,
    input_context_of,
    session_master,
    strategy_of,
)
from tfx_tpu_trainer.estimator.places.host import OnHost
from tfx_tpu_trainer.estimator.places.place import Call, Hooks, Place, bind_call
from tfx_tpu_trainer.estimator.places.strategy.feed import is_of_tpus
from tfx_tpu_trainer.estimator.places.strategy.place import UnderStrategy
from tfx_tpu_trainer.estimator.tpu._run_config import (
    InputPipelineConfig,
    RunConfig,
    check_positive_integer,
    parse_iterations_per_loop,
)
from tfx_tpu_trainer.estimator.tpu._tpu_context import TPUContext, without_padding
from tfx_tpu_trainer.estimator.tpu.cores.emulated import OnEmulatedCores
from tfx_tpu_trainer.estimator.tpu.cores.job_input import JobOnHost
from tfx_tpu_trainer.estimator.tpu.cores.layout import CoreLayout, InputMode
from tfx_tpu_trainer.estimator.tpu.cores.run import loops_of
from tfx_tpu_trainer.estimator.tpu.cores.tpu_session import OnTPU
from tfx_tpu_trainer.estimator.tpu.cores.tpu_system import find_tpu_system
from tfx_tpu_trainer.estimator.tpu.cores.trace import CoreCall, trace_on_cores
from tfx_tpu_trainer.estimator.tpu.embedding.trace import (
    EmbeddedUnderStrategy,
    trace_with_embeddings,
)

_logger = tf.get_logger()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TPUCallSettings:
    """The settings of a TPUEstimator's calls that a RunConfig lacks.

    Attributes:
        on_cores: Mode -> whether it runs on TPU cores.
        batch_sizes: Mode -> global batch size, or `None`.
        batch_axis: The axis of each input tensor to split, or `None`.
        embedding_config_spec: Embeddings of the cores, or `None`.
        report_period: How often cores report loss and throughput, as arguments of the reporting
            hooks; `None` for never.
        report_steps: Steps between the reports of a training that is not on cores; `None` for none.
    """

    on_cores: Mapping[str, bool]
    batch_sizes: Mapping[str, int | None]
    batch_axis: Sequence[int] | None
    embedding_config_spec: Any
    report_period: Mapping[str, Any] | None
    report_steps: int | None

    @property
    def host_period(self) -> Mapping[str, Any] | None:
        """How often a training on the host reports; each of its session calls is a step."""
        return None if self.report_steps is None else {"every_n_steps": self.report_steps}


class TPUEstimatorCalls(EstimatorCalls):
    """The calls of a `TPUEstimator`: checked, bound to their functions, and placed."""

    _config: RunConfig

    def __init__(
        self,
        model_fn: Callable[..., Any],
        *,
        config: RunConfig,
        params: Mapping[str, Any],
        settings: TPUCallSettings,
        export_options: Mapping[str, Any],
    ) -> None:
        super().__init__(model_fn, config=config, params=params)
        self._settings = settings
        self._export_options = export_options

    def place(self, input_fn: Callable[..., Any], mode: str) -> Place:
        """Returns where a call runs, and logs it unless it is this host; only a call needs the TPU."""
        check_input_fn(input_fn)
        use_tpu, strategy = self._settings.on_cores[mode], self._strategy(mode)
        # Under TFX_TPU_TRAINER_EMULATE=1 emulation wins over the config.
        if use_tpu and not emulates(""):
            self._check_one_place(mode, strategy)
        master = self._master(mode)
        choice = choose_place(
            use_tpu=use_tpu,
            master=master,
            strategy=strategy,
            count_cores=lambda: find_tpu_system(master).num_cores,
        )
        if choice.kind is not Kind.HOST:
            _logger.info("Mode %r runs on %s.", mode, choice.reason)
        if choice.kind is Kind.STRATEGY:
            assert strategy is not None
            return self.under_strategy(input_fn, mode, strategy)
        places: Mapping[Kind, Callable[[Callable[..., Any], str], Place]] = {
            Kind.HOST: self.on_host,
            Kind.EMULATED_CORES: self.on_emulated_cores,
            Kind.TPU: self.on_tpu,
        }
        return places[choice.kind](input_fn, mode)

    def on_host(self, input_fn: Callable[..., Any], mode: str) -> OnHost:
        """Returns a call on this host."""
        sliced = self._config.tpu_config.eval_training_input_configuration
        if mode != ModeKeys.TRAIN and sliced == InputPipelineConfig.SLICED:
            raise ValueError(
                "Invalid TPUConfig `eval_training_input_configuration` value. SLICED mode only "
                "works on use_tpu = True; leave it out on the host."
            )
        call, context = self._bound_on_host(input_fn, mode), input_context_of(self._config, mode)
        rows = self._settings.batch_sizes[mode]
        if mode == ModeKeys.TRAIN and rows is not None and context is None:
            return JobOnHost(call=call, rows=rows, batch_axis=self._settings.batch_axis)
        # An input without an end may be intended, as in the original.
        return OnHost(call=call, input_context=context, warns_of_endless_input=False)

    def under_strategy(
        self, input_fn: Callable[..., Any], mode: str, strategy: tf.distribute.Strategy
    ) -> UnderStrategy:
        """Returns a call under a strategy."""
        on_cores = self._settings.on_cores[mode]
        spec = self._settings.embedding_config_spec if on_cores else None
        tpu_config = self._config.tpu_config
        added = share_of_replica(
            self._settings.batch_sizes[mode],
            replicas=strategy.num_replicas_in_sync,
            use_tpu=on_cores,
        )
        return UnderStrategy(
            call=self._bound(input_fn, mode),
            strategy=strategy,
            added=added,
            sees_strategy=not on_cores,
            loops=self._loops() if on_cores and mode == ModeKeys.TRAIN else None,
            num_cores_per_replica=tpu_config.num_cores_per_replica if on_cores else None,
            input_partition_dims=tpu_config.input_partition_dims if on_cores else None,
            embed=None if spec is None else functools.partial(EmbeddedUnderStrategy, spec),
        )

    def on_emulated_cores(self, input_fn: Callable[..., Any], mode: str) -> OnEmulatedCores:
        """Returns a call on emulated cores."""
        check_can_be_emulated(self._config.tpu_config.num_shards)
        return OnEmulatedCores(self._on_cores(input_fn, mode))

    def on_tpu(self, input_fn: Callable[..., Any], mode: str) -> OnTPU:
        """Returns a call on the cores of the TPU at the mode's master."""
        find_system = functools.partial(
            find_tpu_system,
            self._master(mode),
            session_config=self._config.session_config,
            job=self._config.tpu_config.tpu_job_name,
            with_topology=self._config.tpu_config.num_cores_per_replica is not None,
        )
        return OnTPU(self._on_cores(input_fn, mode), find_system)

    def plan_training(
        self, input_fn: Callable[..., Any], *, steps: int | None, max_steps: int | None
    ) -> tuple[TrainingPlan, Hooks]:
        """Plans a training where it runs, with hooks that report its speed and loss."""
        place = self.place(input_fn, ModeKeys.TRAIN)
        plan, hooks = place.plan_training(steps=steps, max_steps=max_steps)
        settings = self._settings
        on_cores = settings.on_cores[ModeKeys.TRAIN]
        period = settings.report_period if on_cores else settings.host_period
        if period is None:
            return plan, hooks
        throughput = ThroughputHook(
            **period,
            steps_per_call=plan.steps_per_call,
            batch_size=settings.batch_sizes[ModeKeys.TRAIN],
            output_dir=self._config.model_dir if self._config.save_summary_steps else None,
        )
        if isinstance(place, OnHost):
            # Its steps may run in loops, whose loss only the training knows.
            plan = dataclasses.replace(plan, log_loss_every=period["every_n_steps"])
        else:
            hooks = [*hooks, self._loss_log(plan, period)]
        return plan, [*hooks, throughput]

    def call_model_fn(
        self, features: Any, labels: Any, mode: str, config: Any | None = None
    ) -> Any:
        """Calls model_fn on the host, with its own configuration or another one."""
        return self._bound_on_host(None, mode, config).call_model_fn(features, labels, {})

    def call_model_for_export(self, features: Any, labels: Any, mode: str, use_tpu: bool) -> Any:
        """Calls model_fn for an export, whose batches have any size."""
        if mode == ModeKeys.PREDICT:
            features = without_padding(features)
        return self._bound(None, mode).call_model_fn(features, labels, {"use_tpu": use_tpu})

    def export_options(self) -> dict[str, Any]:
        """Returns which graphs an export has, and the version of the export API."""
        return dict(self._export_options)

    def training_reports(self) -> TrainingReports:
        """Returns what a training reports."""
        return TrainingReports(
            every_steps=self._settings.report_steps,
            rows_per_step=self._settings.batch_sizes[ModeKeys.TRAIN],
        )

    def check_train_steps(self, steps: int | None, max_steps: int | None) -> None:
        """Checks the steps of a training; on cores they must be given."""
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
        """Checks the steps of an evaluation; on cores they must be integers."""
        if not self._settings.on_cores[ModeKeys.EVAL] or steps is None:
            super().check_eval_steps(steps)
        else:
            check_positive_integer(steps, "Eval steps")

    def session_master(self, mode: str) -> str:
        """Returns the address of a session's master; emulated cores are in this process."""
        return session_master(self._master(mode))

    def _bound(
        self,
        input_fn: Any,
        mode: str,
        config: Any = None,
        *,
        added: Mapping[str, Any] = MappingProxyType({}),
    ) -> Call:
        return bind_call(
            input_fn,
            mode,
            model_fn=self._model_fn,
            params={**self._params, **added},
            config=config or self._config,
            needs_params=True,
        )

    def _bound_on_host(self, input_fn: Any, mode: str, config: Any = None) -> Call:
        """Binds both functions to their batch size, and model_fn to `use_tpu=False`."""
        batch_size = self._settings.batch_sizes[mode]
        added = {} if batch_size is None else {"batch_size": batch_size}
        call = self._bound(input_fn, mode, config, added=added)

        def call_model_fn(features: Any, labels: Any, added: Mapping[str, Any], /) -> Any:
            if mode == ModeKeys.PREDICT:
                features = without_padding(features)
            _logger.info("Running %s on CPU/GPU", mode)
            return call.call_model_fn(features, labels, {"use_tpu": False, **added})

        return dataclasses.replace(call, call_model_fn=call_model_fn)

    def _on_cores(self, input_fn: Any, mode: str) -> CoreCall:
        spec = self._settings.embedding_config_spec
        return CoreCall(
            call=self._bound(input_fn, mode),
            config=self._config,
            batch_size=self._settings.batch_sizes[mode],
            batch_axis=self._settings.batch_axis,
            loops=self._loops(),
            trace=trace_on_cores
            if spec is None
            else functools.partial(trace_with_embeddings, spec),
        )

    def _loops(self) -> Loops:
        return loops_of(
            self._config,
            log_every_n_steps=(self._settings.report_period or {}).get("every_n_steps"),
        )

    def _loss_log(self, plan: TrainingPlan, period: Mapping[str, Any]) -> LossLogHook:
        loop = parse_iterations_per_loop(self._config.tpu_config.iterations_per_loop)
        if loop.unit == "count":
            # As in the original, the rates' period counts global steps, the loss's session calls.
            period = {"every_n_calls": period["every_n_steps"]}
        return LossLogHook(
            plan.loss, steps_per_call=plan.steps_per_call, shows_step_reached=True, **period
        )

    def _strategy(self, mode: str) -> tf.distribute.Strategy | None:
        # The original predicts under no strategy. Under a TPUStrategy, the cores belong to the strategy, and there is
        # no other place to predict.
        if mode == ModeKeys.PREDICT and self._settings.on_cores[mode]:
            return self._config.eval_distribute
        return strategy_of(self._config, mode)

    def _check_one_place(self, mode: str, strategy: tf.distribute.Strategy | None) -> None:
        if input_context_of(self._config, mode) is not None:
            raise ValueError(
                "use_tpu=True can't run under a ParameterServerStrategy: its workers train "
                "asynchronously, but TPU cores train in step. Use use_tpu=False, or leave "
                "train_distribute and eval_distribute out of RunConfig."
            )
        master = self._master(mode)
        is_tpus_own = is_of_tpus(strategy) and not emulates(master)
        if strategy is not None and master and not is_tpus_own:
            raise ValueError(
                f"RunConfig names two places for use_tpu=True: master {master!r} and "
                f"{type(strategy).__name__}. Leave master (cluster) out to run under the strategy, "
                "or train_distribute and eval_distribute to run on the cores of the master."
            )


def share_of_replica(
    global_batch_size: int | None, *, replicas: int, use_tpu: bool
) -> dict[str, Any]:
    """Returns the params of input_fn and model_fn under a `tf.distribute` strategy."""
    added: dict[str, Any] = {"use_tpu": use_tpu}
    if use_tpu:
        # tf.distribute calls input_fn once and draws an element for each replica, like PER_HOST_V2 with one host.
        added["context"] = TPUContext(
            CoreLayout(replicas, one_host=True), InputMode.PER_HOST_V2, invocation=0
        )
    if global_batch_size is None:
        return added
    share, rest = divmod(global_batch_size, replicas)
    if rest:
        raise ValueError(
            f"The batch size {global_batch_size} must be divisible by the number of replicas of "
            f"the tf.distribute strategy, {replicas}."
        )
    return {**added, "batch_size": share}
