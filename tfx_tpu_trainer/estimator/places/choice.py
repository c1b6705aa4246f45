"""Chooses the place where a call runs, with the reason."""

import dataclasses
import enum
import os
from collections.abc import Callable

import tensorflow as tf

from tfx_tpu_trainer.estimator._argument_checks import is_no_strategy, is_parameter_server
from tfx_tpu_trainer.estimator._modes import ModeKeys
from tfx_tpu_trainer.estimator._run_config import RunConfig
from tfx_tpu_trainer.estimator.places.strategy.feed import spans_processes

EMULATED_MASTER = "emulated"
EMULATE_VARIABLE = "TFX_TPU_TRAINER_EMULATE"
"""The environment variable that, set to 1, makes TPUEstimators run on emulated cores."""
REPLICAS_VARIABLE = "TFX_TPU_TRAINER_EMULATED_REPLICAS"

_DEFAULT_REPLICAS = 8

# The limit, since each replica has its copy of the model's graph.
_MOST_REPLICAS = 1024


class Kind(enum.Enum):
    """The kinds of places."""

    HOST = "host"
    STRATEGY = "strategy"
    EMULATED_CORES = "emulated cores"
    TPU = "tpu"


@dataclasses.dataclass(frozen=True)
class Choice:
    """A place that was chosen."""

    kind: Kind
    # Which place it is, and why, for a log line.
    reason: str


def session_master(master: str) -> str:
    """Returns the address of the sessions, `""` for emulated cores, even if the program names a TPU."""
    return "" if emulates(master) else master


def emulates(master: str) -> bool:
    """Returns whether a program with this master has emulated cores.

    Args:
        master: Address of the session's master, as the configuration has it.
    """
    return environment_emulates() or master == EMULATED_MASTER


def emulated_replicas() -> int:
    """Returns the number of emulated replicas if `TPUConfig` has no `num_shards`.

    Returns:
        8, unless TFX_TPU_TRAINER_EMULATED_REPLICAS is set.

    Raises:
        ValueError: If that is not a number from 1 to 1024.
    """
    text = os.environ.get(REPLICAS_VARIABLE) or str(_DEFAULT_REPLICAS)
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_REPLICAS:
        raise ValueError(
            f"{REPLICAS_VARIABLE} must be an integer from 1 to {_MOST_REPLICAS}; got {text!r}."
        )
    return int(text)


def check_can_be_emulated(replicas: int | None) -> None:
    """Rejects more replicas, `TPUConfig(num_shards=...)`, than can be emulated."""
    if replicas is not None and replicas > _MOST_REPLICAS:
        raise ValueError(
            f"TPUConfig num_shards={replicas}: at most {_MOST_REPLICAS} replicas can be emulated, as each has a copy "
            "of the model in one graph. Give fewer, or run on a TPU."
        )


def choose_place(
    *,
    use_tpu: bool,
    master: str,
    count_cores: Callable[[], int],
    strategy: tf.distribute.Strategy | None = None,
) -> Choice:
    """Decides where to run, without connecting to a remote master, which could wait."""
    # `count_cores` returns the number of TPU cores of this machine, or raises a RuntimeError if it has none.
    # The order matters. The environment comes first: it lets someone try a program without editing
    # it, and the program may name a TPU, or a strategy for one, that does not exist today.
    if use_tpu and environment_emulates():
        return Choice(Kind.EMULATED_CORES, f"emulated TPU cores ({EMULATE_VARIABLE}=1)")
    if strategy is not None:
        reason = f"RunConfig has a {type(strategy).__name__}"
        return Choice(Kind.STRATEGY, f"a tf.distribute strategy ({reason})")
    if not use_tpu:
        return Choice(Kind.HOST, "host (use_tpu=False)")
    if master == EMULATED_MASTER:
        reason = f"RunConfig(master={EMULATED_MASTER!r})"
        return Choice(Kind.EMULATED_CORES, f"emulated TPU cores ({reason})")
    if master:
        return Choice(Kind.TPU, f"TPU cores (master {master!r})")
    try:
        cores = count_cores()
    except RuntimeError as error:
        raise RuntimeError(
            "Cannot find any TPU cores in the system. Please double check Tensorflow master address "
            "and TPU worker(s): with use_tpu=True no TPU was named and this machine has none. Name "
            "a TPU with RunConfig(cluster=TPUClusterResolver(...)) or RunConfig(master=...), or a "
            "TPUStrategy with RunConfig(train_distribute=...); or emulate TPU cores with "
            f"RunConfig(master={EMULATED_MASTER!r}) or the environment variable "
            f"{EMULATE_VARIABLE}=1; or run on this host with use_tpu=False."
        ) from error
    return Choice(Kind.TPU, f"TPU cores (this machine has {cores} TPU cores)")


def environment_emulates() -> bool:
    """Returns whether the environment requests emulated TPU cores.

    Raises:
        ValueError: If the variable is neither 1 nor 0; with `true`, the program would otherwise train on the TPU that
            it names.
    """
    text = os.environ.get(EMULATE_VARIABLE, "")
    if text not in ("", "0", "1"):
        raise ValueError(
            f"{EMULATE_VARIABLE}={text!r} is not valid; give 1 to emulate TPU cores, or 0 or nothing not to"
        )
    return text == "1"


def strategy_of(config: RunConfig, mode: str) -> tf.distribute.Strategy | None:
    """Returns the strategy that runs the steps of a mode; as in the original, prediction has none."""
    # `experimental_distribute` wins over the others. Under a parameter server strategy, each worker's own session runs
    # the steps.
    strategy = configured_strategy(config, mode)
    if is_no_strategy(strategy):
        return None
    if is_parameter_server(strategy):
        _check_one_replica(strategy)
        return None
    if mode == ModeKeys.TRAIN:
        _check_cluster(config, strategy)
    return strategy


def input_context_of(config: RunConfig, mode: str) -> tf.distribute.InputContext | None:
    """Returns an input_fn's context under a parameter server strategy, else `None`."""
    if not is_parameter_server(configured_strategy(config, mode)):
        return None
    if mode != ModeKeys.TRAIN or not config.cluster_spec.jobs:
        return tf.distribute.InputContext()
    return tf.distribute.InputContext(
        num_input_pipelines=config.num_worker_replicas,
        input_pipeline_id=config.global_id_in_cluster,
    )


def configured_strategy(config: RunConfig, mode: str) -> tf.distribute.Strategy | None:
    """Returns the strategy that a configuration has for a mode."""
    name = {ModeKeys.TRAIN: "train_distribute", ModeKeys.EVAL: "eval_distribute"}.get(mode)
    if name is None:
        return None
    both = config.experimental_distribute
    return getattr(both, name, None) or getattr(config, name)


def _check_cluster(config: RunConfig, strategy: tf.distribute.Strategy) -> None:
    if config.num_worker_replicas > 1 and not spans_processes(strategy):
        raise ValueError(
            f"{type(strategy).__name__} ({strategy.num_replicas_in_sync} replicas) covers only this "
            f"process, but the cluster of TF_CONFIG has {config.num_worker_replicas} tasks that "
            f"train: {config.cluster_spec.as_dict()}. Use "
            "tf.distribute.MultiWorkerMirroredStrategy, created before anything else runs, or "
            "tf.compat.v1.distribute.experimental.ParameterServerStrategy; or leave TF_CONFIG "
            "out."
        )


def _check_one_replica(strategy: tf.distribute.Strategy) -> None:
    if strategy.num_replicas_in_sync > 1:
        raise ValueError(
            f"{type(strategy).__name__} has {strategy.num_replicas_in_sync} replicas in this "
            "process, one for each GPU. A worker of a parameter server strategy may have only "
            "one: let it see one GPU (CUDA_VISIBLE_DEVICES), or use CentralStorageStrategy or "
            "MirroredStrategy in one process."
        )
