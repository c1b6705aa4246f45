"""What the engine must know of a run: the part of a `RunConfig` that it reads."""

from __future__ import annotations

from typing import Literal, Protocol

import tensorflow as tf

v1 = tf.compat.v1


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
        """Seconds a worker waits for the chief, and each of them for the tasks it needs."""

    @property
    def cluster_spec(self) -> tf.train.ClusterSpec:
        """The cluster; empty for a local run."""

    @property
    def checkpoint_save_graph_def(self) -> bool:
        """Whether graph.pbtxt and .meta files are written."""

    @property
    def jit_compile(self) -> bool | Literal["auto"] | None:
        """Whether XLA compiles the steps of loops; `"auto"` measures.

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
