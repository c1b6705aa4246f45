"""Decides where a TPUEstimator runs."""

from __future__ import annotations

import os
from typing import Protocol

import tensorflow as tf

from tfx_tpu_trainer.estimator.places.place import Placement
from tfx_tpu_trainer.estimator.tpu.cores.tpu_system import find_tpu_system

EMULATED_MASTER = "emulated"
EMULATE_VARIABLE = "TFX_TPU_TRAINER_EMULATE"
"""The environment variable that, set to 1, puts TPUEstimators onto emulated cores."""
REPLICAS_VARIABLE = "TFX_TPU_TRAINER_EMULATED_REPLICAS"

_DEFAULT_REPLICAS = 8

# Each of them has its copy of the model's graph.
_MOST_REPLICAS = 1024


class Places(Protocol):
    """The places that a call of a TPUEstimator may run at; making one costs nothing."""

    def on_host(self) -> Placement:
        """Returns the call on this host."""

    def under_strategy(self, strategy: tf.distribute.Strategy) -> Placement:
        """Returns the call under a strategy."""

    def on_emulated_cores(self) -> Placement:
        """Returns the call on emulated cores."""

    def on_tpu(self) -> Placement:
        """Returns the call on the cores of a TPU."""


def session_master(master: str) -> str:
    """Returns the address to open a session at: emulated cores are in this process.

    The environment variable wins over a TPU's address in the program, which may not even answer.
    """
    return "" if emulates(master) else master


def emulates(master: str) -> bool:
    """Whether a program with this master has emulated cores.

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
    places: Places, *, use_tpu: bool, master: str, strategy: tf.distribute.Strategy | None = None
) -> tuple[Placement, str]:
    """Decides where to run.

    A remote master is not asked for its TPU here, so that deciding never waits.

    Args:
        places: The places of the call.
        use_tpu: What the estimator was told.
        master: Address of the session's master, as the configuration has it.
        strategy: Strategy of the mode, as the configuration has it. Defaults to `None`.

    Returns:
        The call where it runs, and where that is and why, for a log line.

    Raises:
        RuntimeError: If TPU cores are requested and none can be had.
    """
    if use_tpu and environment_emulates():
        return places.on_emulated_cores(), f"emulated TPU cores ({EMULATE_VARIABLE}=1)"
    if strategy is not None:
        reason = f"RunConfig has a {type(strategy).__name__}"
        return places.under_strategy(strategy), f"a tf.distribute strategy ({reason})"
    if not use_tpu:
        return places.on_host(), "host (use_tpu=False)"
    if master == EMULATED_MASTER:
        reason = f"RunConfig(master={EMULATED_MASTER!r})"
        return places.on_emulated_cores(), f"emulated TPU cores ({reason})"
    if master:
        return places.on_tpu(), f"TPU cores (master {master!r})"
    try:
        cores = find_tpu_system(master).num_cores
    except RuntimeError as error:
        raise RuntimeError(
            "Cannot find any TPU cores in the system. Please double check Tensorflow master address "
            "and TPU worker(s): with use_tpu=True no TPU was named and this machine has none. Name "
            "a TPU with RunConfig(cluster=TPUClusterResolver(...)) or RunConfig(master=...), or a "
            "TPUStrategy with RunConfig(train_distribute=...); or emulate TPU cores with "
            f"RunConfig(master={EMULATED_MASTER!r}) or the environment variable "
            f"{EMULATE_VARIABLE}=1; or run on this host with use_tpu=False."
        ) from error
    return places.on_tpu(), f"TPU cores (this machine has {cores} TPU cores)"


def environment_emulates() -> bool:
    """Returns whether the environment asks for emulated TPU cores.

    Raises:
        ValueError: The variable is neither 1 nor 0: whoever wrote `true` would train on the TPU that the program names.
    """
    text = os.environ.get(EMULATE_VARIABLE, "")
    if text not in ("", "0", "1"):
        raise ValueError(
            f"{EMULATE_VARIABLE}={text!r} is not valid; give 1 to emulate TPU cores, or 0 or nothing not to"
        )
    return text == "1"
