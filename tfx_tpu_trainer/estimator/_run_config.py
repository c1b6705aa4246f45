"""The configuration of a run: folders, seeds, checkpoints, the cluster."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

import tensorflow as tf

from tfx_tpu_trainer._support.file_systems import path_text
from tfx_tpu_trainer.estimator._argument_checks import (
    check_values,
    is_no_strategy,
    leads_steps,
    one_model_dir,
)
from tfx_tpu_trainer.estimator._engine.sessions.lifecycle import default_session_config
from tfx_tpu_trainer.estimator._task_environment import TaskType, read_task_environment

v1 = tf.compat.v1
_logger = tf.get_logger()

_DEFAULT_CHECKPOINT_SECS = 600
_SAVE_ERROR = "`save_checkpoints_steps` and `save_checkpoints_secs` cannot be both set."


class _NotGiven:
    """Marks an argument that is left out; `None` would switch checkpoints off."""

    def __repr__(self) -> str:
        return "<default>"


_NOT_GIVEN: Any = _NotGiven()

_STRATEGIES = ("train_distribute", "eval_distribute", "experimental_distribute")


class RunConfig:
    """The configuration of a run; mirrors `tf.estimator.RunConfig`.

    The cluster's properties (`cluster_spec`, `task_type`, `master`, ...) come from the environment
    variable TF_CONFIG.

    Examples:
        >>> from tfx_tpu_trainer.estimator import RunConfig
        >>> config = RunConfig(model_dir="runs/taxi", save_checkpoints_steps=500, tf_random_seed=7)
        >>> config.save_checkpoints_steps, config.save_checkpoints_secs
        (500, None)
        >>> by_time = config.replace(save_checkpoints_secs=60)
        >>> by_time.save_checkpoints_steps, by_time.save_checkpoints_secs
        (None, 60)
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        tf_random_seed: int | None = None,
        save_summary_steps: int | None = 100,
        save_checkpoints_steps: int | None = _NOT_GIVEN,
        save_checkpoints_secs: int | None = _NOT_GIVEN,
        session_config: v1.ConfigProto | None = None,
        keep_checkpoint_max: int | None = 5,
        keep_checkpoint_every_n_hours: float | None = 10000,
        log_step_count_steps: int | None = 100,
        train_distribute: tf.distribute.Strategy | None = None,
        device_fn: Callable[[tf.Operation], str] | None = None,
        protocol: str | None = None,
        eval_distribute: tf.distribute.Strategy | None = None,
        experimental_distribute: Any = None,
        experimental_max_worker_delay_secs: int | None = None,
        session_creation_timeout_secs: int | None = 7200,
        checkpoint_save_graph_def: bool = True,
        *,
        jit_compile: bool | Literal["auto"] | None = None,
        save_input_position: bool = False,
        first_checkpoint_secs: int | None = None,
        stall_timeout_secs: float | None = None,
        progress: Literal["auto", "bar", "log", "off"] | None = "auto",
        gradient_norms: bool = False,
        histograms: bool = False,
        profile_steps: tuple[int, int] | None = None,
        tf_config: Mapping[str, Any] | None = None,
    ) -> None:
        """Checks and keeps the configuration.

        Args:
            model_dir: Folder of checkpoints and events. Defaults to `None`: the estimator's.
            tf_random_seed: Graph-level random seed of every run. Defaults to `None`.
            save_summary_steps: Steps between summaries. Defaults to 100. Numbers of steps don't have to be whole: 31.25
                is due at the next whole step, the 32nd.
            save_checkpoints_steps: Steps between checkpoints; excludes
                `save_checkpoints_secs`. With both `None`, no checkpoint is written.
            save_checkpoints_secs: Seconds between checkpoints. Defaults to 600 without
                `save_checkpoints_steps`.
            session_config: Configuration of the sessions. Its options of TensorFlow's graph
                optimizer apply outside loops. Without `optimizer_options`, a training's sessions
                fold no constants, which takes memory. Defaults to `None`, soft placement.
            keep_checkpoint_max: Number of checkpoints to keep; `None` or 0 keeps all. Defaults to 5.
            keep_checkpoint_every_n_hours: Hours after which a checkpoint is kept for good.
                Defaults to 10000.
            log_step_count_steps: Steps between log lines. Defaults to 100.
            train_distribute: Strategy of training; see `docs/strategies.md`. Defaults to `None`.
            device_fn: Returns an op's device. Defaults to `None`.
            protocol: Protocol of the servers, `"grpc"` or `"grpc+verbs"`. Defaults to `None`.
            eval_distribute: Strategy of evaluation. Defaults to `None`.
            experimental_distribute: Strategies of both. Defaults to `None`.
            experimental_max_worker_delay_secs: Seconds a worker waits at most before it
                starts. Defaults to `None`.
            session_creation_timeout_secs: Seconds a worker waits for the chief, and each of them
                for the hosts that it needs to answer. Defaults to 7200.
            checkpoint_save_graph_def: Whether graph.pbtxt and .meta files are written.
                Defaults to `True`.
            jit_compile: How to speed up training steps on the host (ours; not in the original). `None`
                compiles nothing, and runs each op on one thread if the graph's steps are so small that sharing ops
                among threads costs more than it gains, with a log line. `False` always shares ops among threads. `True`
                lets XLA compile the steps; `"auto"` measures both in the first loops and continues with the faster, or
                lets the graph decide if the training must make the same model each time (`tf_random_seed`,
                deterministic ops, `save_input_position`). With both values, random ops draw by the global step. If
                TensorFlow sees a GPU, `None` is `"auto"` for models without random ops. If XLA can't compile a model
                (with `"auto"`, within 60 seconds), or a hook must see every step, a log line reports it. Defaults to
                `None`.
            save_input_position: Whether to save the position of the training input with each checkpoint, in
                `<model_dir>/input_position`, so a resumed training reads the next rows (ours; the original starts
                the input from its beginning). Seeded random ops of model_fn then draw by the global step.
                `docs/reliability.md` has the guarantees. Defaults to `False`.
            first_checkpoint_secs: Seconds to the first checkpoint by time (ours). Each next interval is
                twice as long, up to `save_checkpoints_secs`, so a training that is killed
                early loses at most half of its steps. Defaults to `None`: all intervals are equal.
            stall_timeout_secs: Seconds without a step after which a session ends (ours): the stacks of all Python
                threads are logged and a StalledError is raised; a process that can't raise it ends with exit code 75.
                The first step, which includes compilation, counts too. Defaults to `None`: a session waits forever and
                logs it each minute.
            progress: How to show the progress of a training, an evaluation or a prediction (ours): steps made, loss,
                speed, time left, last checkpoint, next evaluation, batches, and the seconds of each phase. `"bar"`
                draws a bar on standard error, or in a notebook's cell; `"log"` writes log lines, every
                `log_step_count_steps` steps and at most every five seconds; `"auto"` draws if standard error is a
                terminal or the program a notebook, else logs, but nothing with `log_step_count_steps=None`; `"off"` and
                `None` show only the original's lines. Defaults to `"auto"`.
            gradient_norms: Whether each summary of a training has the norms of the gradients, of all variables and of
                each (ours; see `docs/tensorboard.md`). Defaults to `False`.
            histograms: Whether summaries have histograms of gradients and weights (ours). Defaults to `False`.
            profile_steps: The first and the last global step to profile for TensorBoard's profile plugin (ours). On the
                host these steps run one by one; elsewhere, whole session calls are profiled. Defaults to `None`:
                nothing is profiled.
            tf_config: The cluster, in the form of TF_CONFIG, in place of the environment variable (ours). `{}` runs
                this process alone. Defaults to `None`: the environment variable.

        Raises:
            ValueError: If a value is out of its range, both kinds of checkpoint interval are given,
                a strategy can't run a model_fn, or TF_CONFIG is invalid.
            TypeError: If a value has the wrong type.
        """
        if save_checkpoints_steps is _NOT_GIVEN and save_checkpoints_secs is _NOT_GIVEN:
            save_checkpoints_steps, save_checkpoints_secs = None, _DEFAULT_CHECKPOINT_SECS
        elif save_checkpoints_secs is _NOT_GIVEN:
            save_checkpoints_secs = None
        elif save_checkpoints_steps is _NOT_GIVEN:
            save_checkpoints_steps = None
        elif save_checkpoints_steps is not None and save_checkpoints_secs is not None:
            raise ValueError(
                f"{_SAVE_ERROR} Got {save_checkpoints_steps} and {save_checkpoints_secs}."
            )
        strategy = getattr(experimental_distribute, "train_distribute", None) or train_distribute
        environment = read_task_environment(tf_config, needs_chief=is_no_strategy(strategy))
        self._values: dict[str, Any] = {
            "model_dir": one_model_dir(model_dir, environment.model_dir),
            "tf_random_seed": tf_random_seed,
            "save_summary_steps": save_summary_steps,
            "save_checkpoints_steps": save_checkpoints_steps,
            "save_checkpoints_secs": save_checkpoints_secs,
            "session_config": session_config,
            "keep_checkpoint_max": keep_checkpoint_max,
            "keep_checkpoint_every_n_hours": keep_checkpoint_every_n_hours,
            "log_step_count_steps": log_step_count_steps,
            "train_distribute": train_distribute,
            "device_fn": device_fn,
            "protocol": protocol,
            "eval_distribute": eval_distribute,
            "experimental_distribute": experimental_distribute,
            "experimental_max_worker_delay_secs": experimental_max_worker_delay_secs,
            "session_creation_timeout_secs": session_creation_timeout_secs,
            "checkpoint_save_graph_def": checkpoint_save_graph_def,
            "jit_compile": jit_compile,
            "save_input_position": save_input_position,
            "first_checkpoint_secs": first_checkpoint_secs,
            "stall_timeout_secs": stall_timeout_secs,
            "progress": progress,
            "gradient_norms": gradient_norms,
            "histograms": histograms,
            "profile_steps": profile_steps,
        }
        check_values(self._values)
        if not all(map(is_no_strategy, (strategy, eval_distribute))):
            _logger.info("Initializing RunConfig with distribution strategies.")
        self._cluster_spec = environment.cluster_spec
        self._task_type = environment.task_type
        self._task_id = environment.task_id
        in_this_process = leads_steps(strategy)
        self._master = "" if in_this_process else environment.master
        self._evaluation_master = environment.evaluation_master
        self._is_chief = environment.is_chief
        self._num_ps_replicas = environment.num_ps_replicas
        self._num_worker_replicas = environment.num_worker_replicas
        self._global_id_in_cluster = environment.global_id_in_cluster
        self._service = environment.service
        if not in_this_process:
            self._configure_sessions_of_a_cluster()

    def _configure_sessions_of_a_cluster(self) -> None:
        """Keeps a task of a cluster from waiting for tasks that it needs no connection to."""
        if self._values["session_config"] is not None or not self._cluster_spec.jobs:
            return
        # Without filters, a session connects to every task of the cluster and waits for each, so a
        # worker that has not started, or has died, would block all others.
        filters = {
            TaskType.MASTER: ["/job:ps", "/job:master"],
            TaskType.CHIEF: ["/job:ps", "/job:chief"],
            TaskType.WORKER: ["/job:ps", f"/job:worker/task:{self._task_id}"],
            TaskType.PS: ["/job:ps", "/job:worker", "/job:chief", "/job:master"],
        }.get(self._task_type)
        if filters is not None:
            session_config = default_session_config()
            session_config.device_filters.extend(filters)
            self._values["session_config"] = session_config

    def __deepcopy__(self, memo: dict[int, Any]) -> RunConfig:
        """Returns a deep copy that shares the strategies, which hold devices, servers and threads."""
        for name in _STRATEGIES:
            # deepcopy takes objects in `memo` as copied already.
            memo[id(self._values[name])] = self._values[name]
        copied = copy.copy(self)
        memo[id(self)] = copied
        vars(copied).update(copy.deepcopy(vars(self), memo))
        return copied

    def replace(self, **kwargs: Any) -> RunConfig:
        """Returns a changed deep copy.

        Args:
            **kwargs: New values of constructor arguments. One of the two checkpoint intervals
                clears the other.

        Returns:
            The copy.

        Raises:
            ValueError: If a name can't be replaced, or a value is out of its range.
        """
        unknown = [name for name in kwargs if name not in REPLACEABLE]
        if unknown:
            raise ValueError(
                f"Replacing {unknown[0]} is not supported. Allowed properties are "
                f"{list(REPLACEABLE)}."
            )
        steps, secs = "save_checkpoints_steps", "save_checkpoints_secs"
        if kwargs.get(steps) is not None and kwargs.get(secs) is not None:
            raise ValueError(f"{_SAVE_ERROR} Got {kwargs[steps]} and {kwargs[secs]}.")
        if kwargs.get("model_dir") is not None:
            kwargs["model_dir"] = path_text("model_dir", kwargs["model_dir"])
        changed = copy.deepcopy(self)
        changed._values.update(kwargs)
        if kwargs.get(steps) is not None:
            changed._values[secs] = None
        elif kwargs.get(secs) is not None:
            changed._values[steps] = None
        check_values(changed._values)
        return changed

    def __repr__(self) -> str:
        """The arguments that are not the defaults."""
        given = ", ".join(f"{name}={value!r}" for name, value in self._given().items())
        return f"{type(self).__name__}({given})"

    def _given(self) -> dict[str, Any]:
        defaults = {name: each.default for name, each in _PARAMETERS.items()}
        by_time = {
            "save_checkpoints_steps": None,
            "save_checkpoints_secs": _DEFAULT_CHECKPOINT_SECS,
        }
        defaults.update(by_time)
        if self.save_checkpoints_steps is not None:
            defaults["save_checkpoints_secs"] = None
        return {
            name: value
            for name, value in self._values.items()
            if value is not defaults[name] and value != defaults[name]
        }

    def described(self) -> dict[str, Any]:
        """Returns every property under the name in the original's log."""
        rest = {name: value for name, value in vars(self).items() if name != "_values"}
        return {f"_{name}": value for name, value in self._values.items()} | rest

    @property
    def model_dir(self) -> str | None:
        """Folder of checkpoints and events."""
        return self._values["model_dir"]

    @property
    def tf_random_seed(self) -> int | None:
        """Graph-level random seed of every run."""
        return self._values["tf_random_seed"]

    @property
    def save_summary_steps(self) -> int | None:
        """Steps between summaries."""
        return self._values["save_summary_steps"]

    @property
    def save_checkpoints_steps(self) -> int | None:
        """Steps between checkpoints."""
        return self._values["save_checkpoints_steps"]

    @property
    def save_checkpoints_secs(self) -> int | None:
        """Seconds between checkpoints."""
        return self._values["save_checkpoints_secs"]

    @property
    def session_config(self) -> v1.ConfigProto | None:
        """Configuration of the sessions."""
        return self._values["session_config"]

    @property
    def keep_checkpoint_max(self) -> int | None:
        """Checkpoints kept."""
        return self._values["keep_checkpoint_max"]

    @property
    def keep_checkpoint_every_n_hours(self) -> float | None:
        """Hours after which a checkpoint is kept for good."""
        return self._values["keep_checkpoint_every_n_hours"]

    @property
    def log_step_count_steps(self) -> int | None:
        """Steps between log lines."""
        return self._values["log_step_count_steps"]

    @property
    def train_distribute(self) -> tf.distribute.Strategy | None:
        """Strategy of training."""
        return self._values["train_distribute"]

    @property
    def eval_distribute(self) -> tf.distribute.Strategy | None:
        """Strategy of evaluation."""
        return self._values["eval_distribute"]

    @property
    def experimental_distribute(self) -> Any:
        """Strategies of both: an object with `train_distribute` and `eval_distribute`."""
        return self._values["experimental_distribute"]

    @property
    def device_fn(self) -> Callable[[tf.Operation], str] | None:
        """Returns an op's device."""
        return self._values["device_fn"]

    @property
    def protocol(self) -> str | None:
        """Protocol of the servers."""
        return self._values["protocol"]

    @property
    def experimental_max_worker_delay_secs(self) -> int | None:
        """Seconds a worker waits at most before it starts."""
        return self._values["experimental_max_worker_delay_secs"]

    @property
    def session_creation_timeout_secs(self) -> int | None:
        """Seconds that a task waits for the chief and for the hosts that it needs."""
        return self._values["session_creation_timeout_secs"]

    @property
    def checkpoint_save_graph_def(self) -> bool:
        """Whether graph.pbtxt and .meta files are written."""
        return self._values["checkpoint_save_graph_def"]

    @property
    def jit_compile(self) -> bool | Literal["auto"] | None:
        """Whether XLA compiles steps on the host: `None`, `False`, `True` or `"auto"`."""
        return self._values["jit_compile"]

    @property
    def save_input_position(self) -> bool:
        """Whether the position of the training input is saved with each checkpoint."""
        return self._values["save_input_position"]

    @property
    def first_checkpoint_secs(self) -> int | None:
        """Seconds to the first checkpoint by time; `None` for equal intervals."""
        return self._values["first_checkpoint_secs"]

    @property
    def stall_timeout_secs(self) -> float | None:
        """Seconds without a step after which a session ends; `None` never ends it."""
        return self._values["stall_timeout_secs"]

    @property
    def progress(self) -> str | None:
        """How progress is shown: `"auto"`, `"bar"`, `"log"` or `"off"`; `None` is off."""
        return self._values["progress"]

    @property
    def gradient_norms(self) -> bool:
        """Whether summaries have the norms of the gradients."""
        return self._values["gradient_norms"]

    @property
    def histograms(self) -> bool:
        """Whether summaries have histograms of gradients and weights."""
        return self._values["histograms"]

    @property
    def profile_steps(self) -> tuple[int, int] | None:
        """The first and the last global step to profile; `None` profiles nothing."""
        return self._values["profile_steps"]

    @property
    def cluster_spec(self) -> tf.train.ClusterSpec:
        """The training cluster; empty for a local run."""
        return self._cluster_spec

    @property
    def task_type(self) -> str:
        """Type of this process's task, one of `TaskType`."""
        return self._task_type

    @property
    def task_id(self) -> int:
        """Index of this process among those of its type."""
        return self._task_id

    @property
    def master(self) -> str:
        """Address of the training session's master."""
        return self._master

    @property
    def evaluation_master(self) -> str:
        """Address of the evaluation session's master."""
        return self._evaluation_master

    @property
    def is_chief(self) -> bool:
        """Whether this process initializes variables and saves."""
        return self._is_chief

    @property
    def num_ps_replicas(self) -> int:
        """Number of parameter servers."""
        return self._num_ps_replicas

    @property
    def num_worker_replicas(self) -> int:
        """Number of workers, the chief included."""
        return self._num_worker_replicas

    @property
    def global_id_in_cluster(self) -> int | None:
        """Number of this task over all types."""
        return self._global_id_in_cluster

    @property
    def service(self) -> Mapping[str, Any] | None:
        """The `service` entry of TF_CONFIG."""
        return self._service


_PARAMETERS = inspect.signature(RunConfig).parameters
REPLACEABLE = tuple(_PARAMETERS)
