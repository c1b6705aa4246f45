"""Chooses the place where a call runs, and says why."""

import dataclasses
import enum
import os
from collections.abc import Callable

import tensorflow as tf

from tfx_tpu_trainer.estimator._mode_keys import ModeKeys
from tfx_tpu_trainer.estimator._run_config import RunConfig
from tfx_tpu_trainer.estimator.places.strategy import kinds
from tfx_tpu_trainer.estimator.places.strategy.feed import spans_processes

EMULATED_MASTER = "emulated"
EMULATE_VARIABLE = "TFX_TPU_TRAINER_EMULATE"
"""The environment variable that, set to 1, puts TPUEstimators onto emulated cores."""
REPLICAS_VARIABLE = "TFX_TPU_TRAINER_EMULATED_REPLICAS"

_DEFAULT_REPLICAS = 8

# Each of them has its copy of the model's graph.
_MOST_REPLICAS = 1024


class Kind(enum.Enum):
    """The kinds of places."""

    HOST = "host"
    STRATEGY = "strategy"
    EMULATED_CORES = "emulated cores"
    TPU = "tpu"


@dataclasses.dataclass(frozen=True)
class Choice:
    """A place that was chosen.

    Attributes:
        kind: The kind of place.
        reason: Where that is and why, for a log line.
    """

    kind: Kind
    reason: str


def session_master(master: str) -> str:
    """Returns the address to open a session at: emulated cores are in this process.

    The environment variable wins over a TPU's address in the program, which may not even answer.
    """
    return "" if emulates(master) else master


def emulates(master: str) -> bool:
    """Tells whether a program with this master has emulated cores.

    Args:
        master: Address of the session's master, as the configuration has it.
    """
    return environment_emulates() or master == EMULATED_MASTER


def emulated_replicas() -> int:
    """Returns the number of emulated replicas where `TPUConfig` has no `num_shards`.

    Returns:
        8, unless TFX_TPU_TRAINER_EMULATED_REPLICAS says otherwise.

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
    """Refuses more replicas than can be emulated: each has a copy of the model in one graph.

    Args:
        replicas: What `TPUConfig` has as `num_shards`.

    Raises:
        ValueError: If they are too many.
    """
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
    """Decides where to run.

    A remote master is not asked for its TPU here, so that deciding never waits.

    Args:
        use_tpu: What the estimator was told.
        master: Address of the session's master, as the configuration has it.
        count_cores: Returns the number of TPU cores of this machine; called where nothing else
            says where to run. Raises a RuntimeError where there are none.
        strategy: Strategy of the mode, as the configuration has it. Defaults to `None`.

    Returns:
        The place.

    Raises:
        RuntimeError: If TPU cores are requested and none can be had.
    """
    # The order is the meaning. The environment comes first: it is how someone tries a program
    # without editing it, and the program may name a TPU, or a strategy for one, that is not there
    # today.
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
    """Tells whether the environment asks for emulated TPU cores.

    Raises:
        ValueError: The variable is neither 1 nor 0: whoever wrote `true` would train on the TPU that the program names.
    """
    text = os.environ.get(EMULATE_VARIABLE, "")
    if text not in ("", "0", "1"):
        raise ValueError(
            f"{EMULATE_VARIABLE}={text!r} is not valid; give 1 to emulate TPU cores, or 0 or nothing not to"
        )
    return text == "1"


def strategy_of(config: RunConfig, mode: str) -> tf.distribute.Strategy | None:
    """Returns the strategy that runs the steps of a mode, as a configuration has it.

    As in the original, prediction has none. `experimental_distribute` wins over the others. A
    parameter server strategy leaves the steps to each worker's own session.
    """
    strategy = _configured(config, mode)
    if kinds.is_none(strategy):
        return None
    if kinds.is_parameter_server(strategy):
        _check_one_replica(strategy)
        return None
    if mode == ModeKeys.TRAIN:
        _check_cluster(config, strategy)
    return strategy


def input_context_of(config: RunConfig, mode: str) -> tf.distribute.InputContext | None:
    """Returns what an input_fn may know of the other workers of a parameter server strategy.

    `None` where there is no such strategy.
    """
    if not kinds.is_parameter_server(_configured(config, mode)):
        return None
    if mode != ModeKeys.TRAIN or not config.cluster_spec.jobs:
        return tf.distribute.InputContext()
    return tf.distribute.InputContext(
        num_input_pipelines=config.num_worker_replicas,
        input_pipeline_id=config.global_id_in_cluster,
    )


def _configured(config: RunConfig, mode: str) -> tf.distribute.Strategy | None:
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
