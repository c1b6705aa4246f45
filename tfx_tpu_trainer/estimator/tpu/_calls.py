"""The calls of a TPUEstimator: on cores, emulated or real, or as those of an Estimator."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._callables import check_input_fn, takes
from tfx_tpu_trainer.estimator._calls import (
    ToldOfTraining,
    check_train_steps,
    master_of,
)
from tfx_tpu_trainer.estimator._engine.loops.loop_hook import Loops
from tfx_tpu_trainer.estimator._mode_keys import ModeKeys
from tfx_tpu_trainer.estimator._number_checks import check_positive
from tfx_tpu_trainer.estimator.places.host import OnHost
from tfx_tpu_trainer.estimator.places.place import Call, Placement, bind_call
from tfx_tpu_trainer.estimator.places.strategy.feed import is_of_tpus
from tfx_tpu_trainer.estimator.places.strategy.place import (
    UnderStrategy,
    input_context_of,
    strategy_of,
)
from tfx_tpu_trainer.estimator.tpu._is_padding import without_padding
from tfx_tpu_trainer.estimator.tpu._reports import Reported
from tfx_tpu_trainer.estimator.tpu._run_config import RunConfig
from tfx_tpu_trainer.estimator.tpu._run_place import (
    check_can_be_emulated,
    choose_place,
    emulates,
    session_master,
)
from tfx_tpu_trainer.estimator.tpu._tpu_config import InputPipelineConfig, check_positive_integer
from tfx_tpu_trainer.estimator.tpu._tpu_context import TPUContext
from tfx_tpu_trainer.estimator.tpu.cores.emulated import OnEmulatedCores
from tfx_tpu_trainer.estimator.tpu.cores.layout import CoreLayout, InputMode
from tfx_tpu_trainer.estimator.tpu.cores.run import loops_of
from tfx_tpu_trainer.estimator.tpu.cores.tpu_session import OnTPU
from tfx_tpu_trainer.estimator.tpu.cores.tpu_system import find_tpu_system
from tfx_tpu_trainer.estimator.tpu.cores.trace import CoreCall, trace_on_cores
from tfx_tpu_trainer.estimator.tpu.embedding.trace import trace_with_embeddings
from tfx_tpu_trainer.estimator.tpu.embedding.under_strategy import EmbeddedUnderStrategy

_logger = tf.get_logger()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TPUCallSettings:
    """What a TPUEstimator knows of its calls beyond a RunConfig.

    Attributes:
        on_cores: Mode -> whether it runs on TPU cores.
        batch_sizes: Mode -> global batch size, or `None`.
        batch_axis: The axis of each input tensor to split, or `None`.
        embedding_config_spec: Embeddings of the cores, or `None`.
        report_period: How often cores report loss and throughput, as arguments of the hooks that
            do; `None` switches them off.
        report_steps: Steps between the reports of a training that is not on cores; `None` where
            there are none.
    """

    on_cores: Mapping[str, bool]
    batch_sizes: Mapping[str, int | None]
    batch_axis: Sequence[int] | None
    embedding_config_spec: Any
    report_period: Mapping[str, int] | None
    report_steps: int | None

    @property
    def host_period(self) -> Mapping[str, int] | None:
        """How often a training that is not on cores reports: a session call of it is a step, no loop."""
        return None if self.report_steps is None else {"every_n_steps": self.report_steps}


class TPUEstimatorCalls:
    """The `Calls` of a TPUEstimator."""

    def __init__(
        self,
        model_fn: Callable[..., Any],
        *,
        config: RunConfig,
        params: Mapping[str, Any],
        settings: TPUCallSettings,
        export_options: Mapping[str, Any],
    ) -> None:
        """Takes what all calls share.

        Args:
            model_fn: The model.
            config: The configuration of the runs, complete.
            params: What the user's functions get as `params`, besides what is added to it.
            settings: What the estimator was told of cores and batches.
            export_options: What an export needs to know of graphs and versions.
        """
        self._model_fn = model_fn
        self._config = config
        self._params = params
        self._settings = settings
        self._export_options = export_options

    def placement(self, input_fn: Callable[..., Any], mode: str) -> Placement:
        """Returns the place of a call, and says where that is unless it is this host.

        It is found when a call runs, so that building and exporting need no TPU.
        """
        check_input_fn(input_fn)
        use_tpu, strategy = self._settings.on_cores[mode], self._strategy(mode)
        if use_tpu and not emulates(""):
            self._check_one_place(mode, strategy)
        placement, reason = choose_place(
            self.places(input_fn, mode),
            use_tpu=use_tpu,
            master=master_of(self._config, mode),
            strategy=strategy,
        )
        is_elsewhere = use_tpu or strategy is not None
        if is_elsewhere:
            _logger.info("Mode %r runs on %s.", mode, reason)
        period = self._settings.report_period if use_tpu else self._settings.host_period
        if mode != ModeKeys.TRAIN or period is None:
            return placement
        return Reported(
            placement=placement,
            period=period,
            config=self._config,
            batch_size=self._settings.batch_sizes[mode],
            on_host=not is_elsewhere,
        )

    def places(self, input_fn: Callable[..., Any], mode: str) -> TPUPlaces:
        """Returns the places that a call may run at."""
        return TPUPlaces(
            call=self._bound(input_fn, mode, self._config),
            config=self._config,
            settings=self._settings,
            master=master_of(self._config, mode),
        )

    def call_model_fn(
        self, features: Any, labels: Any, mode: str, config: Any | None = None
    ) -> Any:
        """Calls model_fn on the host; see `Calls`."""
        call = self._bound(None, mode, config or self._config)
        return _on_host(call, self._config, self._settings).call_model_fn(features, labels, {})

    def call_model_for_export(self, features: Any, labels: Any, mode: str, use_tpu: bool) -> Any:
        """Calls model_fn for an export; see `Calls`."""
        if mode == ModeKeys.PREDICT:
            features = without_padding(features)
        call = self._bound(None, mode, self._config)
        return call.call_model_fn(features, labels, {"use_tpu": use_tpu})

    def export_options(self) -> dict[str, Any]:
        """Returns what an export needs to know; see `Calls`."""
        return dict(self._export_options)

    def told_of_training(self) -> ToldOfTraining:
        """Returns what is to be told of a training; see `Calls`."""
        return ToldOfTraining(
            every_steps=self._settings.report_steps,
            rows_per_step=self._settings.batch_sizes[ModeKeys.TRAIN],
        )

    def check_train_steps(self, steps: int | None, max_steps: int | None) -> None:
        """Checks the steps of a training; on cores there must be some."""
        check_train_steps(steps, max_steps)
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
        """Checks the steps of an evaluation; see `Calls`."""
        if not self._settings.on_cores[ModeKeys.EVAL] or steps is None:
            check_positive("steps", steps)
        else:
            check_positive_integer(steps, "Eval steps")

    def session_master(self, mode: str) -> str:
        """Returns the address of a session's master; emulated cores are in this process."""
        return session_master(master_of(self._config, mode))

    def _bound(self, input_fn: Any, mode: str, config: Any) -> Call:
        return _checked(
            bind_call(
                input_fn,
                mode,
                model_fn=self._model_fn,
                params=self._params,
                config=config,
                required=("params",),
            ),
            input_fn=input_fn,
            model_fn=self._model_fn,
        )

    def _strategy(self, mode: str) -> tf.distribute.Strategy | None:
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
        master = master_of(self._config, mode)
        is_tpus_own = is_of_tpus(strategy) and not emulates(master)
        if strategy is not None and master and not is_tpus_own:
            raise ValueError(
                f"RunConfig names two places for use_tpu=True: master {master!r} and "
                f"{type(strategy).__name__}. Leave master (cluster) out to run under the strategy, "
                "or train_distribute and eval_distribute to run on the cores of the master."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TPUPlaces:
    """The `Places` that a call of a TPUEstimator may run at.

    Attributes:
        call: The call.
        config: The configuration of the run.
        settings: What the estimator was told of cores and batches.
        master: Address of the mode's session's master.
    """

    call: Call
    config: RunConfig
    settings: TPUCallSettings
    master: str

    def on_host(self) -> OnHost:
        """Returns the call on this host. Rows without an end may be meant, as in the original."""
        return OnHost(
            call=_on_host(self.call, self.config, self.settings),
            input_context=input_context_of(self.config, self.call.mode),
            warns_of_endless_input=False,
        )

    def under_strategy(self, strategy: tf.distribute.Strategy) -> UnderStrategy:
        """Returns the call under a strategy."""
        mode = self.call.mode
        on_cores = self.settings.on_cores[mode]
        spec = self.settings.embedding_config_spec if on_cores else None
        tpu_config = self.config.tpu_config
        added = share_of_replica(
            self.settings.batch_sizes[mode],
            replicas=strategy.num_replicas_in_sync,
            use_tpu=on_cores,
        )
        return UnderStrategy(
            call=self.call,
            strategy=strategy,
            added=added,
            sees_strategy=not on_cores,
            loops=self._loops() if on_cores and mode == ModeKeys.TRAIN else None,
            num_cores_per_replica=tpu_config.num_cores_per_replica if on_cores else None,
            input_partition_dims=tpu_config.input_partition_dims if on_cores else None,
            embed=None if spec is None else functools.partial(EmbeddedUnderStrategy, spec),
        )

    def on_emulated_cores(self) -> OnEmulatedCores:
        """Returns the call on emulated cores."""
        check_can_be_emulated(self.config.tpu_config.num_shards)
        return OnEmulatedCores(self._on_cores())

    def on_tpu(self) -> OnTPU:
        """Returns the call on the cores of the TPU at the master."""
        find_system = functools.partial(
            find_tpu_system,
            self.master,
            session_config=self.config.session_config,
            job=self.config.tpu_config.tpu_job_name,
            with_topology=self.config.tpu_config.num_cores_per_replica is not None,
        )
        return OnTPU(self._on_cores(), find_system)

    def _on_cores(self) -> CoreCall:
        spec = self.settings.embedding_config_spec
        return CoreCall(
            call=self.call,
            config=self.config,
            batch_size=self.settings.batch_sizes[self.call.mode],
            batch_axis=self.settings.batch_axis,
            loops=self._loops(),
            trace=trace_on_cores
            if spec is None
            else functools.partial(trace_with_embeddings, spec),
        )

    def _loops(self) -> Loops:
        return loops_of(
            self.config,
            log_every_n_steps=(self.settings.report_period or {}).get("every_n_steps"),
        )


def share_of_replica(
    global_batch_size: int | None, *, replicas: int, use_tpu: bool
) -> dict[str, Any]:
    """Returns what the params of input_fn and model_fn say under a `tf.distribute` strategy."""
    added: dict[str, Any] = {"use_tpu": use_tpu}
    if use_tpu:
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


def _checked(call: Call, *, input_fn: Any, model_fn: Callable[..., Any]) -> Call:
    """Makes sure that both functions get to know their batch size."""

    def call_input_fn(
        added: Mapping[str, Any], input_context: tf.distribute.InputContext | None = None, /
    ) -> Any:
        if not takes(input_fn, "params"):
            raise ValueError(
                f"input_fn ({input_fn!r}) does not include params argument, required by "
                'TPUEstimator to pass batch size as params["batch_size"].'
            )
        return call.call_input_fn(added, input_context)

    def call_model_fn(features: Any, labels: Any, added: Mapping[str, Any], /) -> Any:
        if not takes(model_fn, "params"):
            raise ValueError(
                f"model_fn ({model_fn!r}) does not include params argument, required by "
                "TPUEstimator to pass batch size as params['batch_size']."
            )
        return call.call_model_fn(features, labels, added)

    return dataclasses.replace(call, call_input_fn=call_input_fn, call_model_fn=call_model_fn)


def _on_host(call: Call, config: RunConfig, settings: TPUCallSettings) -> Call:
    """Returns a call whose functions are told that they run on the host, and its batch size."""
    batch_size = settings.batch_sizes[call.mode]
    told = {} if batch_size is None else {"batch_size": batch_size}

    def call_input_fn(
        added: Mapping[str, Any], input_context: tf.distribute.InputContext | None = None, /
    ) -> Any:
        sliced = config.tpu_config.eval_training_input_configuration
        if call.mode != ModeKeys.TRAIN and sliced == InputPipelineConfig.SLICED:
            raise ValueError(
                "Invalid TPUConfig `eval_training_input_configuration` value. SLICED mode only "
                "works on use_tpu = True; leave it out on the host."
            )
        return call.call_input_fn({**told, **added}, input_context)

    def call_model_fn(features: Any, labels: Any, added: Mapping[str, Any], /) -> Any:
        if call.mode == ModeKeys.PREDICT:
            features = without_padding(features)
        _logger.info("Running %s on CPU/GPU", call.mode)
        return call.call_model_fn(features, labels, {**told, "use_tpu": False, **added})

    return dataclasses.replace(call, call_input_fn=call_input_fn, call_model_fn=call_model_fn)
