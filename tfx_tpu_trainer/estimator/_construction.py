"""What an Estimator is made of: checks of what it is given, its configuration, its graphs."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.file_systems import check_can_be_opened, path_text
from tfx_tpu_trainer.estimator._engine.sessions.lifecycle import default_session_config
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator._run_config import RunConfig

v1 = tf.compat.v1
_logger = tf.get_logger()

_OWN_PACKAGE = __name__.partition(".")[0]
_MAY_BE_OVERRIDDEN = frozenset(
    {"model_fn", "latest_checkpoint", "_assert_members_are_not_overridden"}
)


def check_members_are_not_overridden(subclass: type, base: type) -> None:
    """Refuses a subclass that replaces a member of its base, as the original does."""
    members = {name for name in vars(base) if not name.startswith("__")} - _MAY_BE_OVERRIDDEN
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
    if listeners is not None and not isinstance(listeners, Iterable):
        raise TypeError(f"{message}, given: {listeners!r}. Give a list of them.")
    listeners = tuple(listeners or ())
    for listener in listeners:
        if not isinstance(listener, v1.train.CheckpointSaverListener):
            raise TypeError(f"{message}, given: {listener!r}")
    return listeners


def has_terminal(config: RunConfig) -> bool:
    """Tells whether this process may draw on its terminal: not where other tasks share it."""
    return config.is_chief and not config.cluster_spec.jobs


def call_graph(config: RunConfig) -> contextlib.AbstractContextManager[tf.Graph]:
    """Opens the graph of a call, in which the user's functions are called.

    Args:
        config: The configuration of the run.

    Returns:
        A context manager.
    """
    return fresh_graph(
        config.tf_random_seed, device_fn=config.device_fn or _variables_on_ps(config)
    )


def _variables_on_ps(config: RunConfig) -> Callable[[tf.Operation], str] | None:
    """Returns what puts variables on a cluster's parameter servers, the rest on this task."""
    if not config.num_ps_replicas:
        return None
    return v1.train.replica_device_setter(
        ps_tasks=config.num_ps_replicas,
        worker_device=f"/job:{config.task_type}/task:{config.task_id}",
        merge_devices=True,
        cluster=config.cluster_spec,
    )
