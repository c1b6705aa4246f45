"""Decides where a TPUEstimator runs."""

from __future__ import annotations

import enum
import os

from tfx_tpu_trainer.estimator.tpu.run_config import RunConfig

EMULATED_MASTER = "emulated"
EMULATE_VARIABLE = "TFX_TPU_TRAINER_EMULATE"


class RunPlace(enum.Enum):
    """Where a graph runs."""

    HOST = "host"
    EMULATED = "emulated TPU cores"


def session_master(master: str) -> str:
    """Gives the address to open a session at: emulated cores are in this process.

    The environment variable wins over a TPU's address in the program, which may not even answer.
    """
    return "" if _emulates() or master == EMULATED_MASTER else master


def choose_place(*, use_tpu: bool, config: RunConfig) -> tuple[RunPlace, str]:
    """Decides where to run.

    Args:
        use_tpu: What the estimator was told.
        config: The configuration of the run.

    Returns:
        The place, and why, for a log line.

    Raises:
        RuntimeError: If TPU cores are asked for and none can be had.
    """
    if not use_tpu:
        return RunPlace.HOST, "use_tpu=False"
    if _emulates():
        return RunPlace.EMULATED, f"{EMULATE_VARIABLE}=1"
    if config.master == EMULATED_MASTER:
        return RunPlace.EMULATED, f"RunConfig(master={EMULATED_MASTER!r})"
    raise RuntimeError(
        "use_tpu=True, but this version can't run on TPU hardware and was not told to emulate it. "
        f"Emulate TPU cores with RunConfig(master={EMULATED_MASTER!r}) or the environment "
        f"variable {EMULATE_VARIABLE}=1, or run on this host with use_tpu=False."
    )


def _emulates() -> bool:
    return os.environ.get(EMULATE_VARIABLE) == "1"
