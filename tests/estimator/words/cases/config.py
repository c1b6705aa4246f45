"""RunConfig, TPU's too, and what they read in TF_CONFIG."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.estimator.words.stacks import Stack

_CLUSTER = {"chief": ["h:1"], "worker": ["h:2"], "ps": ["h:3"]}
_MASTER = {"master": ["h:1"], "worker": ["h:2"]}


def _place(cluster: Any = _CLUSTER, task: Any = None, **parts: Any) -> Callable[[Stack], Any]:
    """A RunConfig under this TF_CONFIG."""

    def case(t: Stack) -> Any:
        named = {"cluster": cluster, "task": task}
        t.tf_config(**{k: v for k, v in named.items() if v is not None}, **parts)
        return t.est.RunConfig()

    return case


def _config(**options: Any) -> Callable[[Stack], Any]:
    return lambda t: t.est.RunConfig(**options)


def _task(kind: Any, index: Any) -> dict[str, Any]:
    named = {"type": kind, "index": index}
    return {name: value for name, value in named.items() if value is not None}


def _parameter_server(t: Stack) -> Any:
    strategy = object.__new__(tf.distribute.experimental.ParameterServerStrategy)
    return t.est.RunConfig(train_distribute=strategy)


CASES: dict[str, Callable[[Stack], Any]] = {
    "saves_by_steps_and_seconds": _config(save_checkpoints_steps=1, save_checkpoints_secs=1),
    "replaces_by_steps_and_seconds": lambda t: t.est.RunConfig().replace(
        save_checkpoints_steps=1, save_checkpoints_secs=1
    ),
    "replaces_an_unknown": lambda t: t.est.RunConfig().replace(color=1),
    "replaces_what_may_not_be": lambda t: t.est.RunConfig().replace(master="a"),
    "model_dir_empty": _config(model_dir=""),
    "seed_of_a_string": _config(tf_random_seed="a"),
    "summary_steps_negative": _config(save_summary_steps=-1),
    "checkpoint_steps_negative": _config(save_checkpoints_steps=-1),
    "checkpoint_seconds_negative": _config(save_checkpoints_secs=-1),
    "session_config_of_a_string": _config(session_config="a"),
    "keep_checkpoints_negative": _config(keep_checkpoint_max=-1),
    "keep_hours_0": _config(keep_checkpoint_every_n_hours=0),
    "log_steps_negative": _config(log_step_count_steps=-1),
    "device_fn_of_a_string": _config(device_fn="a"),
    "device_fn_of_other_arguments": _config(device_fn=lambda a, b: "x"),
    "protocol_unknown": _config(protocol="a"),
    "creation_timeout_negative": _config(session_creation_timeout_secs=-1),
    "tf_config": _place(task=_task("worker", 0)),
    "model_dir_in_tf_config": _place(None, None, model_dir="folder"),
    "model_dir_empty_in_tf_config": _place(None, None, model_dir=""),
    "model_dir_other_in_tf_config": lambda t: (
        t.tf_config(model_dir="a"),
        t.est.RunConfig(model_dir="b"),
    ),
    "service_of_a_string": _place(None, None, service="a"),
    "cluster_without_chief": _place({"worker": ["h:1"]}, _task("worker", 0)),
    "cluster_with_two_chiefs": _place({"chief": ["h:1", "h:2"]}, _task("chief", 0)),
    "cluster_without_task": _place(),
    "task_without_index": _place(task=_task("worker", None)),
    "task_without_type": _place(task=_task(None, 0)),
    "task_negative": _place(task=_task("worker", -1)),
    "task_too_high": _place(task=_task("worker", 7)),
    "task_of_an_unknown_type": _place(task=_task("boss", 0)),
    "evaluator": _place(task=_task("evaluator", 0)),
    "no_cluster_but_a_chief": _place(None, _task("chief", 0)),
    "no_cluster_but_index_1": _place(None, _task("worker", 1)),
    "master_and_chief": _place({**_MASTER, "chief": ["h:3"]}, _task("master", 0)),
    "master_and_evaluator": _place(_MASTER, _task("evaluator", 0)),
    "master_and_a_task_chief": _place(_MASTER, _task("chief", 0)),
    "two_masters": _place({"master": ["h:1", "h:2"]}, _task("master", 0)),
    "with_a_strategy": lambda t: t.est.RunConfig(
        train_distribute=tf.distribute.OneDeviceStrategy("/cpu:0")
    ),
    "with_a_parameter_server_strategy": _parameter_server,
}
