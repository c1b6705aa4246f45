"""How a session is opened: settings that training, evaluation and prediction share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import tensorflow as tf

from tfx_tpu_trainer.engine.checkpointing.checkpoint_damage import damage_explained
from tfx_tpu_trainer.engine.checkpointing.savers import fitted_scaffold
from tfx_tpu_trainer.engine.sessions.guarded_hooks import guarded

v1 = tf.compat.v1

SessionCreatorFn = Callable[..., v1.train.SessionCreator]
"""Makes a session's creator; called as `ChiefSessionCreator` is, with keyword arguments."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """What the engine must know of a run, taken from a RunConfig by the layer above.

    Attributes:
        model_dir: Folder of checkpoints and events.
        master: Address of the session's master; `""` is this process.
        evaluation_master: The same for evaluation.
        is_chief: Whether this process initializes variables and saves.
        session_config: Configuration of every session.
        save_summary_steps: Steps between summaries; 0 or `None` switches them off.
        save_checkpoints_steps: Steps between checkpoints, or `None`.
        save_checkpoints_secs: Seconds between checkpoints, or `None`. With both `None` no
            checkpoint is written at all.
        keep_checkpoint_max: Checkpoints kept; 0 or `None` keeps all.
        keep_checkpoint_every_n_hours: Hours after which one is kept for good.
        log_step_count_steps: Steps between log lines of loss and step; `None` for none.
        session_creation_timeout_secs: Seconds a worker waits for the chief.
        checkpoint_save_graph_def: Whether graph.pbtxt and .meta files are written.
        jit_compile: Whether XLA compiles the steps of loops on this host: `False`, `True`, or
            `"auto"`, which measures.
    """

    model_dir: str
    master: str = ""
    evaluation_master: str = ""
    is_chief: bool = True
    session_config: v1.ConfigProto | None = None
    save_summary_steps: int | None = 100
    save_checkpoints_steps: int | None = None
    save_checkpoints_secs: int | None = 600
    keep_checkpoint_max: int | None = 5
    keep_checkpoint_every_n_hours: float | None = 10000
    log_step_count_steps: int | None = 100
    session_creation_timeout_secs: int | None = 7200
    checkpoint_save_graph_def: bool = True
    jit_compile: bool | Literal["auto"] = False


def default_session_config() -> v1.ConfigProto:
    """Returns the session configuration of a run that brings none.

    Soft placement, so that a model_fn may name a device that is not here, and a single pass of
    the graph optimizer, as in the original.
    """
    config = v1.ConfigProto(allow_soft_placement=True)
    rewrite = config.graph_options.rewrite_options
    rewrite.meta_optimizer_iterations = type(rewrite).ONE
    return config


def placed_by_need(session_config: v1.ConfigProto | None) -> v1.ConfigProto:
    """Returns a copy of a configuration under which only what is fetched needs a kernel.

    A template may hold nodes that are there for TPUs only, `CrossReplicaSum` among them.

    Args:
        session_config: The configuration of the run; `None` is the default one.
    """
    config = v1.ConfigProto()
    config.CopyFrom(session_config or default_session_config())
    config.graph_options.place_pruned_graph = True
    return config


def open_training_session(
    *,
    settings: SessionSettings,
    scaffold: v1.train.Scaffold,
    hooks: Sequence[v1.train.SessionRunHook],
    chief_hooks: Sequence[v1.train.SessionRunHook],
    summary_steps: int | None,
    session_creator: SessionCreatorFn = v1.train.ChiefSessionCreator,
) -> v1.train.MonitoredSession:
    """Opens a session for training, as `MonitoredTrainingSession` does.

    That one can't be given a session creator.

    Args:
        settings: Settings of the run.
        scaffold: The model's scaffold.
        hooks: Hooks of every process.
        chief_hooks: Hooks of the chief, which run before the others.
        summary_steps: Steps between summaries; `None` or 0 for none.
        session_creator: Makes the chief's session creator. Defaults to `ChiefSessionCreator`; any
            other makes that of each process, as their sessions are their own.

    Returns:
        A session to be used as a context manager. The chief's restores the latest checkpoint or
        initializes; the others wait for it.
    """
    config = placed_by_need(settings.session_config)
    hooks, chief_hooks = guarded(hooks), guarded(chief_hooks)
    if not settings.is_chief and session_creator is v1.train.ChiefSessionCreator:
        waiting = v1.train.WorkerSessionCreator(
            scaffold=scaffold,
            master=settings.master,
            config=config,
            max_wait_secs=settings.session_creation_timeout_secs,
        )
        return v1.train.MonitoredSession(session_creator=waiting, hooks=list(hooks))
    creator = session_creator(
        scaffold=scaffold,
        checkpoint_dir=settings.model_dir,
        master=settings.master,
        config=config,
    )
    if not settings.is_chief:
        return v1.train.MonitoredSession(session_creator=creator, hooks=list(hooks))
    all_hooks = list(chief_hooks)
    if settings.log_step_count_steps:
        all_hooks.append(
            v1.train.StepCounterHook(
                every_n_steps=settings.log_step_count_steps, output_dir=settings.model_dir
            )
        )
    if summary_steps:
        all_hooks.append(
            v1.train.SummarySaverHook(
                save_steps=summary_steps, output_dir=settings.model_dir, scaffold=scaffold
            )
        )
    return v1.train.MonitoredSession(session_creator=creator, hooks=[*all_hooks, *hooks])


def open_restored_session(
    *,
    settings: SessionSettings,
    master: str,
    scaffold: v1.train.Scaffold,
    checkpoint_path: str | None,
    hooks: list[v1.train.SessionRunHook],
    session_creator: SessionCreatorFn = v1.train.ChiefSessionCreator,
) -> v1.train.MonitoredSession:
    """Opens a session for evaluation or prediction.

    Args:
        settings: Settings of the run.
        master: Address of the session's master.
        scaffold: The model's scaffold.
        checkpoint_path: Checkpoint to restore; `None` initializes the variables.
        hooks: Hooks of the session.
        session_creator: Makes the session's creator. Defaults to `ChiefSessionCreator`.

    Returns:
        A session to be used as a context manager.

    Raises:
        tf.errors.OpError: If the checkpoint can't be read or does not fit the graph.
    """
    scaffold = fitted_scaffold(scaffold, checkpoint_path)
    with damage_explained(checkpoint_path):
        return v1.train.MonitoredSession(
            session_creator=session_creator(
                scaffold=scaffold,
                checkpoint_filename_with_path=checkpoint_path,
                master=master,
                config=placed_by_need(settings.session_config),
            ),
            hooks=guarded(hooks),
        )
