"""The calls of an Estimator: bound to the places where they run, checked and run."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfx_tpu_trainer._support.file_systems import check_can_be_opened, path_text
from tfx_tpu_trainer._support.progress import PREDICT, TRACE, TRAIN, followed, unfollowed
from tfx_tpu_trainer.estimator._argument_checks import check_positive
from tfx_tpu_trainer.estimator._engine import prediction
from tfx_tpu_trainer.estimator._engine.checkpointing import checkpoints
from tfx_tpu_trainer.estimator._engine.loops.progress_hook import Reporting
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import whole_steps
from tfx_tpu_trainer.estimator._engine.reporting.summaries import events_of
from tfx_tpu_trainer.estimator._engine.sessions.lifecycle import default_session_config
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator._engine.training import training
from tfx_tpu_trainer.estimator._engine.training.training_plan import TrainingPlan
from tfx_tpu_trainer.estimator._estimator_spec import check_hooks, tuple_of
from tfx_tpu_trainer.estimator._modes import ModeKeys
from tfx_tpu_trainer.estimator._run_config import RunConfig
from tfx_tpu_trainer.estimator._task_environment import TaskType
from tfx_tpu_trainer.estimator._user_calls import check_input_fn
from tfx_tpu_trainer.estimator._warm_start import warm_start
from tfx_tpu_trainer.estimator.export._meta_graph import MetaGraph
from tfx_tpu_trainer.estimator.export._saved_model import (
    build_meta_graphs,
    check_receiver_fns,
    export_meta_graphs,
    export_saved_model,
    find_checkpoint,
)
from tfx_tpu_trainer.estimator.places.choice import input_context_of, strategy_of
from tfx_tpu_trainer.estimator.places.host import OnHost
from tfx_tpu_trainer.estimator.places.place import Call, Hooks, Place, bind_call
from tfx_tpu_trainer.estimator.places.strategy.place import UnderStrategy

if TYPE_CHECKING:
    from tfx_tpu_trainer.estimator._estimator import Estimator


v1 = tf.compat.v1


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingReports:
    """What a training reports while it runs."""

    every_steps: int | None  # Steps between two reports; `None` for no reports.
    rows_per_step: int | None = None  # Rows of a step over all replicas; `None` if unknown.

    def mode(self, config: RunConfig) -> str | None:
        """Returns how progress is shown; without reports, `"auto"` shows none."""
        return None if config.progress == "auto" and self.every_steps is None else config.progress


class EstimatorCalls:
    """The calls of an `Estimator`: checked, bound to their functions, and placed."""

    def __init__(
        self, model_fn: Callable[..., Any], *, config: RunConfig, params: Mapping[str, Any]
    ) -> None:
        self._model_fn = model_fn
        self._config = config
        self._params = params

    def place(self, input_fn: Callable[..., Any], mode: str) -> Place:
        """Returns where a call runs: under the strategy of its mode, or else on this host."""
        check_input_fn(input_fn)
        call = self._bound(input_fn, mode)
        strategy = strategy_of(self._config, mode)
        if strategy is None:
            return OnHost(call=call, input_context=input_context_of(self._config, mode))
        return UnderStrategy(call=call, strategy=strategy)

    def plan_training(
        self, input_fn: Callable[..., Any], *, steps: int | None, max_steps: int | None
    ) -> tuple[TrainingPlan, Hooks]:
        """Plans a training where it runs; see `Place`."""
        place = self.place(input_fn, ModeKeys.TRAIN)
        return place.plan_training(steps=steps, max_steps=max_steps)

    def call_model_fn(
        self, features: Any, labels: Any, mode: str, config: RunConfig | None = None
    ) -> Any:
        """Calls model_fn on this host, with its own configuration or another one."""
        return self._bound(None, mode, config).call_model_fn(features, labels, {})

    def call_model_for_export(self, features: Any, labels: Any, mode: str, use_tpu: bool) -> Any:
        """Calls model_fn for an export to CPU hosts, or to TPU hosts with `use_tpu`."""
        del use_tpu
        return self.call_model_fn(features, labels, mode)

    def export_options(self) -> dict[str, Any]:
        """Returns which graphs an export has, and the version of the export API."""
        return {"export_to_cpu": True, "export_to_tpu": False, "api_version": 1}

    def training_reports(self) -> TrainingReports:
        """Returns what a training reports."""
        return TrainingReports(every_steps=self._config.log_step_count_steps)

    def check_train_steps(self, steps: int | None, max_steps: int | None) -> None:
        """Checks the steps of a training."""
        if steps is not None and max_steps is not None:
            raise ValueError(
                f"Can not provide both steps and max_steps; got {steps} and {max_steps}."
            )
        check_positive("steps", steps)
        check_positive("max_steps", max_steps)

    def check_eval_steps(self, steps: int | None) -> None:
        """Checks the steps of an evaluation."""
        check_positive("steps", steps)

    def session_master(self, mode: str) -> str:
        """Returns the address of the master of a mode's sessions; `""` is this process."""
        return self._master(mode)

    def _master(self, mode: str) -> str:
        config = self._config
        return config.evaluation_master if mode == ModeKeys.EVAL else config.master

    def _bound(self, input_fn: Any, mode: str, config: RunConfig | None = None) -> Call:
        return bind_call(
            input_fn,
            mode,
            model_fn=self._model_fn,
            params=self._params,
            config=config or self._config,
        )


_logger = tf.get_logger()
_OWN_PACKAGE = __name__.partition(".")[0]
_MAY_BE_OVERRIDDEN = frozenset(
    {"model_fn", "latest_checkpoint", "_assert_members_are_not_overridden"}
)


def check_members_are_not_overridden(subclass: type, base: type) -> None:
    """Rejects a subclass that replaces a member of its base class, as the original does."""
    members = {name for name in vars(base) if not name.startswith("__")} - _MAY_BE_OVERRIDDEN
    # All base classes, since a class between ours and the program's may be the one that overrides.
    for cls in subclass.__mro__:
        if cls.__module__.partition(".")[0] == _OWN_PACKAGE or cls is object:
            continue
        overridden = sorted(members & set(vars(cls)))
        if overridden:
            raise ValueError(
                f"Subclasses of Estimator cannot override members of Estimator. {cls} does "
                f"override {overridden}. Give the method another name, or put the change into "
                "model_fn or a hook."
            )


def complete_config(config: RunConfig | None, model_dir: Any) -> tuple[RunConfig, str]:
    """Returns a configuration that has a model folder and a session configuration."""
    if config is None:
        config = RunConfig()
        _logger.info("Using default config.")
    if not isinstance(config, RunConfig):
        raise ValueError(f"config must be an instance of `RunConfig`, but provided {config!r}.")
    model_dir = path_text("model_dir", model_dir) if model_dir else None
    if model_dir and config.model_dir and model_dir != config.model_dir:
        raise ValueError(
            "`model_dir` are set both in constructor and `RunConfig`, but with different values. "
            f"In constructor: '{model_dir}', in `RunConfig`: '{config.model_dir}'. Give it in one "
            "place."
        )
    model_dir = model_dir or config.model_dir
    if model_dir:
        check_can_be_opened("model_dir", model_dir)
    else:
        model_dir = tempfile.mkdtemp()
        _logger.warning("Using temporary folder as model directory: %s", model_dir)
    session_config = config.session_config or default_session_config()
    complete = config.replace(model_dir=model_dir, session_config=session_config)
    _logger.info("Using config: %s", complete.described())
    return complete, model_dir


def check_listeners(
    listeners: Iterable[v1.train.CheckpointSaverListener] | None,
    *,
    message: str = "saving_listeners must be a list of CheckpointSaverListener",
) -> tuple[v1.train.CheckpointSaverListener, ...]:
    """Checks saving listeners and returns them as a tuple."""
    return tuple_of(v1.train.CheckpointSaverListener, listeners, message=message)


def has_terminal(config: RunConfig) -> bool:
    """Returns whether this process may draw on its terminal, which no other task shares."""
    return config.is_chief and not config.cluster_spec.jobs


def call_graph(config: RunConfig) -> contextlib.AbstractContextManager[tf.Graph]:
    """Opens the graph of a call, in which the user's functions run."""
    return fresh_graph(
        config.tf_random_seed, device_fn=config.device_fn or _variables_on_ps(config)
    )


def _variables_on_ps(config: RunConfig) -> Callable[[tf.Operation], str] | None:
    """Returns a device function that puts variables on the cluster's parameter servers, and the rest on this task."""
    if not config.num_ps_replicas:
        return None
    return v1.train.replica_device_setter(
        ps_tasks=config.num_ps_replicas,
        worker_device=f"/job:{config.task_type}/task:{config.task_id}",
        merge_devices=True,
        cluster=config.cluster_spec,
    )


SESSION_HOOKS = "Hooks must be a SessionRunHook"


def train(
    estimator: Estimator,
    input_fn: Callable[..., Any],
    hooks: Any,
    steps: int | None,
    max_steps: int | None,
    saving_listeners: Any,
) -> None:
    """Trains from the latest checkpoint on, unless `max_steps` have been made already."""
    config, calls = estimator._config, estimator._calls
    if config.task_type in (TaskType.EVALUATOR, TaskType.PS):
        raise ValueError(
            f"Train has been called wrong configuration: this task is {config.task_type} "
            "in TF_CONFIG. Please use train_and_evaluate, which starts the part of each task."
        )
    calls.check_train_steps(steps, max_steps)
    steps, max_steps = whole_steps(steps), whole_steps(max_steps)
    if max_steps is not None and checkpoints.global_step_of(estimator.model_dir) >= max_steps:
        _logger.info("Skipping training since max_steps has already saved.")
        return
    all_hooks = check_hooks(hooks, message=SESSION_HOOKS)
    listeners = check_listeners(saving_listeners)
    reports = calls.training_reports()
    with (
        events_of(estimator.model_dir),
        followed(reports.mode(config), may_draw=has_terminal(config)) as progress,
        call_graph(config),
    ):
        with progress.phase(TRACE):
            plan, own_hooks = calls.plan_training(input_fn, steps=steps, max_steps=max_steps)
        # A checkpoint would overwrite the values of a warm start, so it is not read then.
        if not estimator.latest_checkpoint():
            if unnamed := checkpoints.unnamed_checkpoints(estimator.model_dir):
                _logger.warning(
                    "Training starts from scratch in %s.%s", estimator.model_dir, unnamed
                )
            start_warm(estimator)
        with progress.phase(TRAIN):
            progress.place(plan.ran_on)
            training.train(
                plan,
                settings=estimator._config_of_runs,
                master=calls.session_master(ModeKeys.TRAIN),
                hooks=[*own_hooks, *all_hooks],
                saving_listeners=listeners,
                reporting=Reporting(
                    progress=progress,
                    steps=steps,
                    max_steps=max_steps,
                    rows_per_step=reports.rows_per_step,
                    every_steps=reports.every_steps,
                ),
            )


def predict(
    estimator: Estimator,
    input_fn: Callable[..., Any],
    predict_keys: Sequence[str] | str | None,
    hooks: Any,
    checkpoint_path: Any,
    yield_single_examples: bool,
) -> Iterator[Any]:
    """Yields predictions; nothing runs before the first is requested."""
    config, calls = estimator._config, estimator._calls
    all_hooks = check_hooks(hooks, message=SESSION_HOOKS)
    checkpoint_path = checkpoint_or_warning(estimator, checkpoint_path, "predict")
    with call_graph(config):
        place = calls.place(input_fn, ModeKeys.PREDICT)
        plan, own_hooks = place.plan_prediction(predict_keys)
        if not checkpoint_path:
            start_warm(estimator)
    batches = prediction.predict_batches(
        plan,
        settings=estimator._config_of_runs,
        master=calls.session_master(ModeKeys.PREDICT),
        hooks=[*own_hooks, *all_hooks],
        checkpoint_path=checkpoint_path,
    )
    progress = unfollowed(config.progress, may_draw=has_terminal(config))
    # The graph's context has ended above: a suspended generator inside it would leave its graph as
    # the default one of the caller's own code.
    with contextlib.closing(batches), progress.phase(PREDICT):
        counted = prediction.told(batches, progress)
        yield from prediction.single_rows(counted) if yield_single_examples else counted


def build_export(
    estimator: Estimator, serving_input_receiver_fn: Callable[[], Any]
) -> tuple[MetaGraph, ...]:
    """Builds the graphs of an export."""
    calls = estimator._calls
    return tuple(
        build_meta_graphs(
            calls.call_model_for_export,
            {ModeKeys.PREDICT: serving_input_receiver_fn},
            random_seed=estimator._config.tf_random_seed,
            **calls.export_options(),
        )
    )


def export_graphs(
    estimator: Estimator,
    export_dir_base: str,
    meta_graphs: Sequence[MetaGraph],
    checkpoint_path: str | None,
) -> bytes:
    """Exports graphs that were built before."""
    return export_meta_graphs(
        meta_graphs,
        export_dir_base=export_dir_base,
        checkpoint_path=_checkpoint_to_export(estimator, checkpoint_path),
        session_config=estimator._config.session_config,
    )


def export(
    estimator: Estimator,
    export_dir_base: str,
    input_receiver_fns: Mapping[str, Callable[[], Any]],
    checkpoint_path: str | None,
    **options: Any,
) -> bytes:
    """Builds and exports the graphs of the modes that have a receiver function."""
    check_receiver_fns(input_receiver_fns)
    config, calls = estimator._config, estimator._calls
    return export_saved_model(
        export_dir_base=export_dir_base,
        call_model=calls.call_model_for_export,
        input_receiver_fns=input_receiver_fns,
        checkpoint_path=_checkpoint_to_export(estimator, checkpoint_path),
        random_seed=config.tf_random_seed,
        session_config=config.session_config,
        **calls.export_options(),
        **options,
    )


def _checkpoint_to_export(estimator: Estimator, checkpoint_path: str | None) -> str:
    return find_checkpoint(
        checkpoint_path or estimator.latest_checkpoint(),
        model_dir=estimator.model_dir,
        warm_start=estimator._warm_start_settings,
    )


def checkpoint_or_warning(estimator: Estimator, given: Any, doing: str) -> Any:
    """Returns the checkpoint to read; if there is none, logs the original's line."""
    # Variables are then initialized; without a warm start, that is worth a warning.
    # A path in the form of TensorFlow's savers; other values are rejected when the checkpoint is opened.
    path = os.fsdecode(given) if isinstance(given, (bytes, os.PathLike)) else given
    path = path or estimator.latest_checkpoint()
    if path:
        return path
    _logger.info(
        "Could not find trained model in model_dir: %s, running initialization to %s.",
        estimator.model_dir,
        doing,
    )
    if estimator._warm_start_settings is None:
        _logger.warning(
            "%s runs on variables that were never trained: model_dir has no latest checkpoint.%s",
            doing,
            checkpoints.unnamed_checkpoints(estimator.model_dir),
        )
    return path


def start_warm(estimator: Estimator) -> None:
    if estimator._warm_start_settings is not None:
        _logger.info("Warm-starting with WarmStartSettings: %s", estimator._warm_start_settings)
        warm_start(estimator._warm_start_settings)
