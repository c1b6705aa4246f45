"""Which part of a training this process has: that of the only host, of the chief, or of a worker."""

from __future__ import annotations

import dataclasses
import enum
import os
from collections.abc import Mapping
from typing import Any

from tfx_tpu_trainer.estimator.extending import TaskType, read_task_environment

_TPU_HOSTS = "TPU_WORKER_HOSTNAMES"
_TPU_HOST = "TPU_WORKER_ID"


class Role(enum.Enum):
    """What a process does in a training."""

    CHIEF = "chief"
    WORKER = "worker"
    PS = "ps"
    EVALUATOR = "evaluator"
    TPU_HOST = "host of a TPU slice"


@dataclasses.dataclass(frozen=True)
class Host:
    """This process's part in a training."""

    role: Role = Role.CHIEF  # What it does. Only the chief writes artifacts.
    is_alone: bool = True  # Whether there is no other process.
    # Whether TF_CONFIG describes them, so that variables are on parameter servers.
    in_cluster: bool = False
    reader: int = 0  # Number of this process among those that read the training's input.
    readers: int = 1  # How many read it.

    @property
    def is_chief(self) -> bool:
        """Whether this process evaluates, exports and writes artifacts."""
        return self.role is Role.CHIEF


ONLY_HOST = Host()

ALONE: Mapping[str, Any] = {}
"""The cluster (`RunConfig`'s `tf_config`) of what runs in this process alone.

The chief evaluates and exports that way, from a checkpoint: its parameter servers may be gone.
"""


def read_host() -> Host:
    """Reads the environment: TF_CONFIG for a cluster, the TPU's variables for a slice of several hosts."""
    place = read_task_environment()
    if place.task_type == TaskType.EVALUATOR:
        return Host(Role.EVALUATOR, is_alone=False, in_cluster=True)
    tasks = place.num_worker_replicas + place.num_ps_replicas
    if tasks > 1:
        if place.num_worker_replicas > 1 and not place.num_ps_replicas:
            raise ValueError(
                f"TF_CONFIG has {place.num_worker_replicas} workers, the chief included, and no "
                '"ps": each would train its own variables. Add at least one "ps" task to its '
                '"cluster", or train on one host.'
            )
        roles = {TaskType.PS: Role.PS, TaskType.WORKER: Role.WORKER}
        role = roles.get(place.task_type, Role.CHIEF)
        if role is Role.PS:
            return Host(role, is_alone=False, in_cluster=True)
        return Host(
            role,
            is_alone=False,
            in_cluster=True,
            reader=place.global_id_in_cluster or 0,
            readers=place.num_worker_replicas,
        )
    return _tpu_host()


def _tpu_host() -> Host:
    names = [name for name in os.environ.get(_TPU_HOSTS, "").split(",") if name.strip()]
    if len(names) < 2:
        return ONLY_HOST
    text = os.environ.get(_TPU_HOST, "")
    if not text.isdecimal() or int(text) >= len(names):
        raise ValueError(
            f"{_TPU_HOST}={text!r} is not the number of one of the {len(names)} hosts in "
            f"{_TPU_HOSTS}; set it to this host's number, from 0"
        )
    # Host 0 draws the input of all of them.
    role = Role.TPU_HOST if int(text) else Role.CHIEF
    return Host(role, is_alone=False)
