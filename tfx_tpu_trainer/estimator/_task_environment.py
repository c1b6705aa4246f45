"""Reads this process's task in a cluster from TF_CONFIG."""

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

_logger = tf.get_logger()

_LOCAL_MASTER = ""
_ADDRESS = re.compile(r"(?:\[[^\s\]]+\]|[^\s:]+):([0-9]{1,5})")
_MAX_PORT = 65535
# A TF_CONFIG of many hosts is long; the reason names the mistake.
_MAX_QUOTED = 200
_NOTE = "Note that these values may be coming from the TF_CONFIG environment variable."


class TaskType:
    """Names of tasks in TF_CONFIG."""

    MASTER = "master"
    PS = "ps"
    WORKER = "worker"
    CHIEF = "chief"
    EVALUATOR = "evaluator"


@dataclasses.dataclass(frozen=True)
class TaskEnvironment:
    """This process's task in a cluster."""

    # The training cluster; empty for a local run and for an evaluator.
    cluster_spec: tf.train.ClusterSpec
    task_type: str  # One of `TaskType`.
    task_id: int  # Index of the task among those of its type.
    master: str  # Address of the training session's master; `""` is this process.
    evaluation_master: str  # The same for evaluation.
    is_chief: bool  # Whether this process initializes variables and saves.
    num_ps_replicas: int  # Number of parameter servers.
    num_worker_replicas: int  # Number of workers, the chief included.
    # Number of this task over all types, the chief being 0 and parameter servers last; `None` for
    # an evaluator.
    global_id_in_cluster: int | None
    service: Mapping[str, Any] | None  # The `service` entry of TF_CONFIG.
    model_dir: str | None  # Model folder named by TF_CONFIG, or `None`.


def read_task_environment(
    tf_config: Mapping[str, Any] | None = None, *, needs_chief: bool = True
) -> TaskEnvironment:
    """Reads TF_CONFIG.

    Args:
        tf_config: A cluster in the form of TF_CONFIG; `{}` is a run of this process alone. Defaults
            to `None`: the environment variable.
        needs_chief: Whether a cluster must have a chief. Defaults to `True`; with `False`, the
            first worker is the chief of a cluster without one.

    Returns:
        This process's task; a local run if TF_CONFIG is not set.

    Raises:
        ValueError: If TF_CONFIG is not JSON, or describes an invalid cluster or task.
        TypeError: If TF_CONFIG, its service or its cluster is not a dict, or an address is not text.
    """
    if tf_config is None:
        tf_config = tf_config_of_environment()
        if tf_config:
            _logger.info("TF_CONFIG environment variable: %s", tf_config)
    if not isinstance(tf_config, Mapping):
        raise TypeError(f"tf_config must be a dict in the form of TF_CONFIG; got {tf_config!r}.")
    model_dir = tf_config.get("model_dir")
    if model_dir == "":
        raise ValueError("model_dir in TF_CONFIG should be non-empty; leave it out instead.")
    service = tf_config.get("service")
    if service is not None and not isinstance(service, dict):
        raise TypeError(
            f'If "service" is set in TF_CONFIG, it must be a dict. Given {type(service)}: {service!r}. '
            "Leave it out if there is none."
        )
    for key in ("model_dir", "session_master", "eval_session_master"):
        if not isinstance(tf_config.get(key, ""), str | None):
            raise ValueError(
                f"{key} in TF_CONFIG is {tf_config[key]!r}; give a string, or leave it out."
            )
    cluster = _cluster(tf_config)
    place = (
        _place_in_cluster(cluster, tf_config, needs_chief=needs_chief)
        if cluster.jobs
        else _local_place(tf_config)
    )
    return TaskEnvironment(service=service, model_dir=model_dir, **place)


def tf_config_of_environment() -> Mapping[str, Any]:
    """Reads the environment variable TF_CONFIG."""
    text = os.environ.get("TF_CONFIG") or "{}"
    try:
        tf_config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"TF_CONFIG is not JSON ({error}): {_cut(text)}; set it to the value from the "
            "cluster's manager, or unset it to run this process alone."
        ) from None
    if not isinstance(tf_config, dict):
        raise ValueError(
            f'TF_CONFIG must be a JSON object such as {{"cluster": ..., "task": ...}}; got {_cut(text)}.'
        )
    return tf_config


def _cut(text: str) -> str:
    return repr(text) if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]!r}..."


def _cluster(tf_config: Mapping[str, Any]) -> tf.train.ClusterSpec:
    jobs = tf_config.get("cluster") or {}
    try:
        cluster = tf.train.ClusterSpec(jobs)
    except (TypeError, ValueError) as error:
        raise type(error)(
            'The "cluster" in TF_CONFIG must map each job to a list of "host:port"; got '
            f"{jobs!r}: {error}"
        ) from error
    return cluster


def _check_addresses(cluster: tf.train.ClusterSpec) -> None:
    """Rejects addresses with which hosts would wait for one another."""
    task_at: dict[str, str] = {}
    for job in cluster.jobs:
        for index in cluster.task_indices(job):
            task, address = f"{job}:{index}", cluster.task_address(job, index)
            port = _ADDRESS.fullmatch(address)
            if port is None or int(port[1]) > _MAX_PORT:
                raise ValueError(
                    f'The address of {task} in TF_CONFIG is {address!r}; give "host:port", with a '
                    f"port from 0 to {_MAX_PORT}."
                )
            # Port 0 means any free one, so two tasks of a host may both have it.
            if address in task_at and int(port[1]):
                raise ValueError(
                    f"{task_at[address]} and {task} in TF_CONFIG have the same address, "
                    f"{address!r}; give each task a unique one."
                )
            task_at[address] = task


def _task(tf_config: Mapping[str, Any]) -> Mapping[str, Any]:
    task = tf_config.get("task", {})
    if not isinstance(task, dict):
        raise ValueError(
            f'The "task" in TF_CONFIG must be like {{"type": "worker", "index": 0}}; got {task!r}.'
        )
    return task


def _task_id(index: Any) -> int:
    try:
        task_id = None if isinstance(index, bool) else int(index)
    except (TypeError, ValueError, OverflowError):
        task_id = None
    if task_id is None or (isinstance(index, float) and index != task_id):
        raise ValueError(
            f"Task index must be an integer; got {index!r} in TF_CONFIG. Give the task's number "
            "among those of its type, from 0."
        )
    return task_id


def _local_place(tf_config: Mapping[str, Any]) -> dict[str, Any]:
    task = _task(tf_config)
    task_type, task_id = task.get("type", TaskType.WORKER), _task_id(task.get("index", 0))
    if task_type != TaskType.WORKER:
        raise ValueError(
            'If "cluster" is not set in TF_CONFIG, task type must be WORKER; got '
            f"{task_type!r}. Add the cluster, or leave the task out."
        )
    if task_id != 0:
        raise ValueError(
            f'If "cluster" is not set in TF_CONFIG, task index must be 0; got {task_id}. '
            "Add the cluster, or leave the task out."
        )
    return {
        "cluster_spec": tf.train.ClusterSpec({}),
        "task_type": task_type,
        "task_id": task_id,
        "master": tf_config.get("session_master", _LOCAL_MASTER),
        "evaluation_master": tf_config.get("eval_session_master", _LOCAL_MASTER),
        "is_chief": True,
        "num_ps_replicas": 0,
        "num_worker_replicas": 1,
        "global_id_in_cluster": 0,
    }


def _place_in_cluster(
    cluster: tf.train.ClusterSpec, tf_config: Mapping[str, Any], *, needs_chief: bool
) -> dict[str, Any]:
    legacy = TaskType.MASTER in cluster.jobs
    chief_type = TaskType.MASTER if legacy else TaskType.CHIEF
    if not needs_chief and chief_type not in cluster.jobs:
        chief_type = TaskType.WORKER
    task_type, task_id = _check_task(cluster, tf_config, chief_type)
    _check_addresses(cluster)
    if legacy and task_type == TaskType.EVALUATOR:
        raise ValueError(
            "If `master` node exists in `cluster`, task_type `evaluator` is not supported: the "
            'master evaluates. Call it "chief" in TF_CONFIG to have an evaluator.'
        )
    if task_type == TaskType.EVALUATOR:
        return {
            "cluster_spec": tf.train.ClusterSpec({}),
            "task_type": task_type,
            "task_id": task_id,
            "master": _LOCAL_MASTER,
            "evaluation_master": tf_config.get("eval_session_master", _LOCAL_MASTER),
            "is_chief": False,
            "num_ps_replicas": 0,
            "num_worker_replicas": 0,
            "global_id_in_cluster": None,
        }
    jobs = cluster.as_dict()
    return {
        "cluster_spec": cluster,
        "task_type": task_type,
        "task_id": task_id,
        "master": tf_config.get("session_master", _session_master(cluster, task_type, task_id)),
        "evaluation_master": _LOCAL_MASTER,
        "is_chief": task_type == chief_type and task_id == 0,
        "num_ps_replicas": len(jobs.get(TaskType.PS, [])),
        # A set, since worker and chief are one job if the first worker is the chief.
        "num_worker_replicas": sum(len(jobs.get(job, [])) for job in {TaskType.WORKER, chief_type}),
        "global_id_in_cluster": _global_id(cluster, task_type, task_id, chief_type),
    }


def _check_task(
    cluster: tf.train.ClusterSpec, tf_config: Mapping[str, Any], chief_type: str
) -> tuple[str, int]:
    if chief_type not in cluster.jobs or not cluster.num_tasks(chief_type):
        raise ValueError(
            f'If "cluster" is set in TF_CONFIG, it must have one "{chief_type}" node; it has '
            f"{cluster.as_dict()}. Add its address."
        )
    if chief_type == TaskType.MASTER and TaskType.CHIEF in cluster.jobs:
        raise ValueError(
            "If `master` node exists in `cluster`, job `chief` is not supported: use only one. "
            f"TF_CONFIG has {cluster.as_dict()}."
        )
    if chief_type != TaskType.WORKER and cluster.num_tasks(chief_type) > 1:
        raise ValueError(
            f'The "cluster" in TF_CONFIG must have only one "{chief_type}" node; it has '
            f"{cluster.job_tasks(chief_type)}. Make the others workers."
        )
    task = _task(tf_config)
    task_type, index = task.get("type"), task.get("index")
    if not task_type:
        raise ValueError(
            f'If "cluster" is set in TF_CONFIG, task type must be set; got {dict(task)}. '
            f"Add one of {sorted({*cluster.jobs, TaskType.EVALUATOR})}."
        )
    if index is None:
        raise ValueError(
            f'If "cluster" is set in TF_CONFIG, task index must be set; got {dict(task)}. '
            "Add the task's number among those of its type, from 0."
        )
    task_id = _task_id(index)
    if task_id < 0:
        raise ValueError(
            f"Task index must be non-negative number; got {task_id} in TF_CONFIG. Count from 0."
        )
    if task_type == TaskType.EVALUATOR:
        return task_type, task_id
    if task_type not in cluster.jobs:
        raise ValueError(
            f"{task_type} is not a valid task_type in the cluster_spec: {cluster.as_dict()}. {_NOTE} "
            "Add its addresses to the cluster, or correct the type."
        )
    if task_id not in cluster.task_indices(task_type):
        raise ValueError(
            f"{task_id} is not a valid task_id for task_type {task_type} in the cluster_spec: "
            f"{cluster.as_dict()}. {_NOTE} Add its address to the cluster, or correct the index: it "
            "counts from 0."
        )
    return task_type, task_id


def _session_master(cluster: tf.train.ClusterSpec, task_type: str, task_id: int) -> str:
    """Returns the address of this task; a cluster of one node runs locally."""
    if len(cluster.jobs) == 1 and cluster.num_tasks(cluster.jobs[0]) == 1:
        return _LOCAL_MASTER
    return f"grpc://{cluster.task_address(task_type, task_id)}"


def _global_id(cluster: tf.train.ClusterSpec, task_type: str, task_id: int, chief_type: str) -> int:
    def rank(job: str) -> tuple[int, str]:
        return (0 if job == chief_type else 2 if job == TaskType.PS else 1, job)

    # {"chief": 1, "ps": 2, "worker": 3}: the chief is 0, workers are 1 to 3, servers 4 and 5.
    before = [job for job in cluster.jobs if rank(job) < rank(task_type)]
    return task_id + sum(cluster.num_tasks(job) for job in before)
