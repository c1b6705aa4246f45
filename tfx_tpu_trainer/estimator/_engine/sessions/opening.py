"""How a session is opened: settings that training, evaluation and prediction share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.checkpointing.checkpoint_damage import damage_explained
from tfx_tpu_trainer.estimator._engine.checkpointing.savers import fitted_scaffold
from tfx_tpu_trainer.estimator._engine.reporting.log_hooks import ThroughputHook
from tfx_tpu_trainer.estimator._engine.sessions.guarded_hooks import guarded
from tfx_tpu_trainer.estimator._engine.sessions.patient_creator import PatientCreator, WorkerCreator
from tfx_tpu_trainer.estimator._engine.sessions.session_configs import (
    Optimizing,
    fold_no_constants,
    optimizing_config,
)

v1 = tf.compat.v1

SessionCreatorFn = Callable[..., v1.train.SessionCreator]
"""Makes a session's creator; called as `ChiefSessionCreator` is, with keyword arguments."""


class SessionSettings(Protocol):
    """What the engine must know of a run: the part of a `RunConfig` that it reads."""

    @property
    def model_dir(self) -> str | None:
        """Folder of checkpoints and events; a run has one."""

    @property
    def is_chief(self) -> bool:
        """Whether this process initializes variables and saves."""

    @property
    def session_config(self) -> v1.ConfigProto | None:
        """Configuration of every session."""

    @property
    def save_summary_steps(self) -> int | None:
        """Steps between summaries; 0 or `None` switches them off."""

    @property
    def save_checkpoints_steps(self) -> int | None:
        """Steps between checkpoints; with those of time `None` too, none is written."""

    @property
    def save_checkpoints_secs(self) -> int | None:
        """Seconds between checkpoints, or `None`."""

    @property
    def keep_checkpoint_max(self) -> int | None:
        """Checkpoints kept; 0 or `None` keeps all."""

    @property
    def keep_checkpoint_every_n_hours(self) -> float | None:
        """Hours after which one is kept for good."""

    @property
    def log_step_count_steps(self) -> int | None:
        """Steps between log lines of loss and step; `None` for none."""

    @property
    def session_creation_timeout_secs(self) -> int | None:
        """Seconds a worker waits for the chief, and each of them for the hosts it needs."""

    @property
    def cluster_spec(self) -> tf.train.ClusterSpec:
        """The cluster; empty for a local run."""

    @property
    def checkpoint_save_graph_def(self) -> bool:
        """Whether graph.pbtxt and .meta files are written."""

    @property
    def jit_compile(self) -> bool | Literal["auto"] | None:
        """Whether XLA compiles the steps of loops on this host; `"auto"` measures.

        `None` does not, and runs small ops on one thread each; `False` leaves them as they are.
        """

    @property
    def save_input_position(self) -> bool:
        """Whether checkpoints have beside them where the training input stands."""

    @property
    def first_checkpoint_secs(self) -> int | None:
        """Seconds to the first checkpoint by time; `None` where all intervals are equal."""

    @property
    def stall_timeout_secs(self) -> float | None:
        """Seconds without a step after which a session ends; `None` never ends it."""

    @property
    def profile_steps(self) -> tuple[int, int] | None:
        """The first and the last global step to profile, or `None`."""


def folder_of(settings: SessionSettings) -> str:
    """Returns the folder of a run's checkpoints and events."""
    assert settings.model_dir is not None
    return settings.model_dir


def open_training_session(
    *,
    settings: SessionSettings,
    master: str,
    scaffold: v1.train.Scaffold,
    hooks: Sequence[v1.train.SessionRunHook],
    chief_hooks: Sequence[v1.train.SessionRunHook],
    summary_steps: int | None,
    optimizing: Optimizing,
    session_creator: SessionCreatorFn = v1.train.ChiefSessionCreator,
) -> v1.train.MonitoredSession:
    """Opens a session for training, as `MonitoredTrainingSession` does.

    That one can't be given a session creator.
    """
    config = optimizing_config(settings.session_config, v1.get_default_graph(), optimizing)
    fold_no_constants(config)
    hooks, chief_hooks = guarded(hooks), guarded(chief_hooks)
    if not settings.is_chief and session_creator is v1.train.ChiefSessionCreator:
        waiting = PatientCreator(
            WorkerCreator(
                scaffold=scaffold,
                master=master,
                config=config,
                max_wait_secs=settings.session_creation_timeout_secs,
            ),
            settings=settings,
            master=master,
            for_chief=True,
        )
        return v1.train.MonitoredSession(session_creator=waiting, hooks=list(hooks))
    placed = session_creator(
        scaffold=scaffold,
        checkpoint_dir=folder_of(settings),
        master=master,
        config=config,
    )
    creator = PatientCreator(placed, settings=settings, master=master, folder=folder_of(settings))
    if not settings.is_chief:
        return v1.train.MonitoredSession(session_creator=creator, hooks=_in_scope(hooks, placed))
    all_hooks = list(chief_hooks)
    if settings.log_step_count_steps:
        all_hooks.append(
            ThroughputHook(
                every_n_steps=settings.log_step_count_steps, output_dir=folder_of(settings)
            )
        )
    if summary_steps:
        all_hooks.append(
            v1.train.SummarySaverHook(
                save_steps=summary_steps, output_dir=folder_of(settings), scaffold=scaffold
            )
        )
    return v1.train.MonitoredSession(
        session_creator=creator, hooks=_in_scope([*all_hooks, *hooks], placed)
    )


def open_restored_session(
    *,
    settings: SessionSettings,
    master: str,
    scaffold: v1.train.Scaffold,
    checkpoint_path: str | None,
    hooks: list[v1.train.SessionRunHook],
    optimizing: Optimizing,
    session_creator: SessionCreatorFn = v1.train.ChiefSessionCreator,
) -> v1.train.MonitoredSession:
    """Opens a session for evaluation or prediction."""
    scaffold = fitted_scaffold(scaffold, checkpoint_path)
    with damage_explained(checkpoint_path):
        creator = session_creator(
            scaffold=scaffold,
            checkpoint_filename_with_path=checkpoint_path,
            master=master,
            config=optimizing_config(settings.session_config, v1.get_default_graph(), optimizing),
        )
        return v1.train.MonitoredSession(
            session_creator=PatientCreator(creator, settings=settings, master=master),
            hooks=_in_scope(guarded(hooks), creator),
        )


def _in_scope(
    hooks: Sequence[v1.train.SessionRunHook], creator: v1.train.SessionCreator
) -> list[v1.train.SessionRunHook]:
    """Has hooks called where the session's steps are made, if its creator has such a place."""
    in_scope = getattr(creator, "in_scope", None)
    return list(hooks) if in_scope is None else in_scope(hooks)
