"""The configuration of a run on TPU cores: RunConfig, and its TPUConfig."""

from __future__ import annotations

import operator
import re
from typing import Any, NamedTuple, cast

import tensorflow as tf

from tfx_tpu_trainer.estimator import _run_config
from tfx_tpu_trainer.estimator._task_environment import TaskType, tf_config_of_environment
from tfx_tpu_trainer.estimator.places.shardings import check_counts
from tfx_tpu_trainer.estimator.tpu.cores.layout import InputMode

v1 = tf.compat.v1
_logger = tf.get_logger()

_CORES_PER_REPLICA = (1, 2, 4, 8, 16, 32, 64, 128)
_SECONDS = {"s": 1, "m": 60, "h": 3600}


class InputPipelineConfig:
    """How an input's rows reach the cores, with the original's values."""

    PER_SHARD_V1 = 1
    PER_HOST_V1 = 2
    PER_HOST_V2 = 3
    BROADCAST = 4
    SLICED = 5


class IterationsPerLoop(NamedTuple):
    """The meaning of an `iterations_per_loop`."""

    value: int  # A number of steps or of seconds; 0 with `"auto"`.
    unit: str  # `"count"`, `"seconds"` or `"auto"`.


def parse_iterations_per_loop(iterations_per_loop: int | str) -> IterationsPerLoop:
    """Parses an `iterations_per_loop`."""
    if iterations_per_loop == "auto":
        return IterationsPerLoop(0, "auto")
    match = re.fullmatch(r"([1-9]\d*)([smh]?)", str(iterations_per_loop))
    if match is None or isinstance(iterations_per_loop, bool):
        raise ValueError(
            "Invalid TPUConfig `iterations_per_loop` value. Value must be positive integer value or "
            "time-based value such as '30s', '5m' or '1h', or 'auto'; got "
            f"{iterations_per_loop!r}."
        )
    number, unit = int(match[1]), match[2]
    if not unit:
        return IterationsPerLoop(number, "count")
    return IterationsPerLoop(number * _SECONDS[unit], "seconds")


def check_integer(value: Any, name: str) -> None:
    """Checks that a value is an integer."""
    try:
        operator.index(value)
        is_integer = not isinstance(value, bool)
    except TypeError:
        is_integer = False
    if not is_integer:
        raise TypeError(f"{name} must be int, got {type(value)}: {value!r}.")


def check_positive_integer(value: Any, name: str) -> None:
    """Checks that a value is a positive integer."""
    check_integer(value, name)
    if value <= 0:
        raise ValueError(f"{name} must be positive; got {value}.")


class _Fields(NamedTuple):
    iterations_per_loop: int | str
    num_shards: int | None
    num_cores_per_replica: int | None
    per_host_input_for_training: int
    tpu_job_name: str | None
    initial_infeed_sleep_secs: int | None
    input_partition_dims: Any
    eval_training_input_configuration: int
    experimental_host_call_every_n_steps: int
    experimental_allow_per_host_v2_parallel_get_next: bool
    experimental_feed_hook: Any


class TPUConfig(_Fields):
    """How a model runs on TPU cores; mirrors `tf.compat.v1.estimator.tpu.TPUConfig`.

    Examples:
        Loops of 30 seconds on eight cores, and images whose height two cores share:

        >>> from tfx_tpu_trainer.estimator import tpu
        >>> tpu.TPUConfig(num_shards=8, iterations_per_loop="30s").iterations_per_loop
        '30s'
        >>> halves = tpu.TPUConfig(
        ...     num_cores_per_replica=2,
        ...     per_host_input_for_training=tpu.InputPipelineConfig.PER_HOST_V2,
        ...     input_partition_dims=[{"image": [1, 2, 1, 1]}],
        ... )
        >>> halves.num_cores_per_replica
        2
    """

    __slots__ = ()

    def __new__(
        cls,
        iterations_per_loop: int | str = 2,
        num_shards: int | None = None,
        num_cores_per_replica: int | None = None,
        per_host_input_for_training: bool | int = True,
        tpu_job_name: str | None = None,
        initial_infeed_sleep_secs: int | None = None,
        input_partition_dims: Any = None,
        eval_training_input_configuration: int = InputPipelineConfig.PER_HOST_V1,
        experimental_host_call_every_n_steps: int = 1,
        experimental_allow_per_host_v2_parallel_get_next: bool = False,
        experimental_feed_hook: Any = None,
    ) -> TPUConfig:
        """Checks and keeps the configuration."""
        parse_iterations_per_loop(iterations_per_loop)
        if num_shards is not None:
            check_positive_integer(num_shards, "TPUConfig num_shards")
        # `True` and `False` before the numbers: True == 1 in Python, and 1 is PER_SHARD_V1, but
        # `True` means PER_HOST_V1.
        if per_host_input_for_training is True:
            per_host_input_for_training = InputPipelineConfig.PER_HOST_V1
        elif per_host_input_for_training is False:
            per_host_input_for_training = InputPipelineConfig.PER_SHARD_V1
        per_host_input_for_training = InputMode(per_host_input_for_training).value
        if input_partition_dims is not None:
            _check_input_partition_dims(
                input_partition_dims, per_host_input_for_training, num_cores_per_replica
            )
        if num_cores_per_replica not in (None, *_CORES_PER_REPLICA):
            raise ValueError(
                "num_cores_per_replica must be 1, 2, 4, 8, 16, 32, 64, 128; got "
                f"{num_cores_per_replica!r}"
            )
        if input_partition_dims is not None and num_cores_per_replica is not None:
            check_counts(input_partition_dims, num_cores_per_replica=num_cores_per_replica)
        if eval_training_input_configuration not in (
            InputPipelineConfig.PER_HOST_V1,
            InputPipelineConfig.SLICED,
        ):
            raise ValueError(
                "eval_training_input_configuration must be PER_HOST_V1 or SLICED; got "
                f"{eval_training_input_configuration}"
            )
        check_positive_integer(
            experimental_host_call_every_n_steps, "TPUConfig experimental_host_call_every_n_steps"
        )
        if initial_infeed_sleep_secs:
            check_positive_integer(initial_infeed_sleep_secs, "TPUConfig initial_infeed_sleep_secs")
        if tpu_job_name:
            _check_job_name(tpu_job_name, "TPUConfig tpu_job_name")
        if experimental_allow_per_host_v2_parallel_get_next not in (True, False, None):
            raise ValueError(
                "TPUConfig experimental_allow_per_host_v2_parallel_get_next must be True or False; got "
                f"{experimental_allow_per_host_v2_parallel_get_next!r}."
            )
        if experimental_feed_hook is not None and not callable(experimental_feed_hook):
            raise TypeError(
                "TPUConfig experimental_feed_hook must be a class of session hooks; got "
                f"{experimental_feed_hook!r}."
            )
        return super().__new__(
            cls,
            iterations_per_loop=iterations_per_loop,
            num_shards=num_shards,
            num_cores_per_replica=num_cores_per_replica,
            per_host_input_for_training=per_host_input_for_training,
            tpu_job_name=tpu_job_name or _tpu_job_name_of_tf_config(),
            initial_infeed_sleep_secs=initial_infeed_sleep_secs,
            input_partition_dims=input_partition_dims,
            eval_training_input_configuration=eval_training_input_configuration,
            experimental_host_call_every_n_steps=experimental_host_call_every_n_steps,
            experimental_allow_per_host_v2_parallel_get_next=(
                experimental_allow_per_host_v2_parallel_get_next
            ),
            experimental_feed_hook=experimental_feed_hook,
        )


def _check_input_partition_dims(
    dims: Any, input_pipeline: int, num_cores_per_replica: int | None
) -> None:
    if not isinstance(dims, (list, tuple)) or len(dims) not in (1, 2):
        raise ValueError(
            "input_partition_dims must be a list/tuple with one or two elements, for features "
            f"and labels; got {dims!r}."
        )
    if input_pipeline is not InputPipelineConfig.PER_HOST_V2:
        raise ValueError(
            "input_partition_dims is only supported in PER_HOST_V2 mode; got "
            f"per_host_input_for_training={input_pipeline}."
        )
    if num_cores_per_replica is None:
        raise ValueError("input_partition_dims requires setting num_cores_per_replica.")


def _check_job_name(name: Any, what: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{what} must be the name of a job, such as 'tpu_worker'; got {name!r}.")


def _tpu_job_name_of_tf_config() -> str | None:
    service = tf_config_of_environment().get("service")
    # RunConfig rejects other types, together with the cluster.
    name = service.get("tpu_worker_job_name") if isinstance(service, dict) else None
    if name:
        _check_job_name(name, "TF_CONFIG's service.tpu_worker_job_name")
        _logger.info("Load TPU job name from TF_CONFIG: %s", name)
    return name


class RunConfig(_run_config.RunConfig):
    """A `RunConfig` with TPU support; mirrors `tf.compat.v1.estimator.tpu.RunConfig`.

    Examples:
        Eight cores, emulated on this CPU:

        >>> from tfx_tpu_trainer.estimator import tpu
        >>> config = tpu.RunConfig(
        ...     model_dir="runs/taxi",
        ...     master="emulated",
        ...     tpu_config=tpu.TPUConfig(num_shards=8, iterations_per_loop=100),
        ... )
        >>> config.master, config.evaluation_master
        ('emulated', 'emulated')
        >>> config.tpu_config.num_shards
        8
    """

    def __init__(
        self,
        tpu_config: TPUConfig | None = None,
        evaluation_master: str | None = None,
        master: str | None = None,
        cluster: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        **kwargs: Any,
    ) -> None:
        """Checks and keeps the configuration.

        Args:
            tpu_config: How the model runs on TPU cores. Defaults to `TPUConfig()`.
            evaluation_master: Address of the evaluation session's master. Defaults to `None`: `master`, unless
                TF_CONFIG names another one.
            master: Address of the training session's master; excludes `cluster`. Defaults to
                `None`: that of TF_CONFIG, or this process.
            cluster: Resolver of the TPU cluster. Defaults to `None`.
            **kwargs: Arguments of `tfx_tpu_trainer.estimator.RunConfig`.

        Raises:
            ValueError: If both master and cluster are given, or cluster with a session_config
                that has a cluster_def.
            TypeError: If an argument has the wrong type.
        """
        super().__init__(**kwargs)
        self._tpu_config = _checked_tpu_config(tpu_config)
        self._cluster = cluster
        for name, address in (("master", master), ("evaluation_master", evaluation_master)):
            if not isinstance(address, str | None):
                raise TypeError(
                    f"{name} must be the address of a session, such as 'grpc://10.0.0.1:8470'; got {address!r}."
                )
        if not all(hasattr(cluster, part) for part in ("master", "cluster_spec")) and cluster:
            raise TypeError(
                f"cluster must be a tf.distribute.cluster_resolver.ClusterResolver; got {cluster!r}."
            )
        if master is not None and cluster is not None:
            raise ValueError(f"Both master and cluster are set: {master!r} and {cluster!r}.")
        if master is not None:
            self._master = master
        elif cluster is not None:
            self._master = cluster.master()
        if evaluation_master is not None:
            self._evaluation_master = evaluation_master
        elif not self._evaluation_master and self._task_type != TaskType.EVALUATOR:
            self._evaluation_master = self._master
        if cluster is not None:
            self._merge_cluster(cluster)

    def _given(self) -> dict[str, Any]:
        given = super()._given()
        if self._tpu_config != TPUConfig():
            given["tpu_config"] = self._tpu_config
        if self._cluster is not None:
            given["cluster"] = self._cluster
        elif self._master:
            given["master"] = self._master
        if self._evaluation_master != self._master:
            given["evaluation_master"] = self._evaluation_master
        return given

    def _configure_sessions_of_a_cluster(self) -> None:
        """Does nothing: a TPU run is one graph over all hosts, without filters."""

    def _merge_cluster(self, cluster: tf.distribute.cluster_resolver.ClusterResolver) -> None:
        self._cluster_spec = cluster.cluster_spec()
        if self._values["session_config"] is None:
            self._values["session_config"] = v1.ConfigProto(
                allow_soft_placement=True, isolate_session_state=True
            )
        session_config = self._values["session_config"]
        if session_config.HasField("cluster_def"):
            raise ValueError(
                "You cannot provide a ClusterResolver and session_config.cluster_def: leave the "
                "cluster_def out."
            )
        if self._cluster_spec:
            session_config.cluster_def.CopyFrom(self._cluster_spec.as_cluster_def())

    @property
    def tpu_config(self) -> TPUConfig:
        """How the model runs on TPU cores."""
        return self._tpu_config

    @property
    def cluster(self) -> tf.distribute.cluster_resolver.ClusterResolver | None:
        """Resolver of the TPU cluster."""
        return self._cluster

    def replace(self, **kwargs: Any) -> RunConfig:
        """Returns a changed deep copy; `tpu_config` may be replaced too."""
        tpu_config = _checked_tpu_config(kwargs.pop("tpu_config", self._tpu_config))
        changed = cast(RunConfig, super().replace(**kwargs))
        changed._tpu_config = tpu_config
        return changed


def _checked_tpu_config(tpu_config: Any) -> TPUConfig:
    if not isinstance(tpu_config, TPUConfig | None):
        raise TypeError(
            f"tpu_config must be a TPUConfig of tfx_tpu_trainer.estimator.tpu; got {tpu_config!r}."
        )
    return tpu_config or TPUConfig()
