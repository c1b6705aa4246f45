"""Trains by a loop of one's own, without an estimator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.waiting import said_while_waiting

v1 = tf.compat.v1


def train(
    train_op: Any,
    logdir: str | None,
    master: str = "",
    is_chief: bool = True,
    scaffold: Any = None,
    hooks: Sequence[Any] | None = None,
    chief_only_hooks: Sequence[Any] | None = None,
    save_checkpoint_secs: int | None = 600,
    save_summaries_steps: int | None = 100,
    config: Any = None,
    max_wait_secs: int = 7200,
    run_metadata: Any = None,
) -> Any:
    """Runs a train op until a hook, or the end of the input, stops it.

    Args:
        train_op: Trains, and is the loss.
        logdir: The folder of checkpoints and summaries; `None` where neither is written.
        master: The session's target. Defaults to `""`, this process.
        is_chief: Whether this process starts the session. Defaults to `True`.
        scaffold: How a session is initialized. Defaults to `None`, TensorFlow's own.
        hooks: Hooks of the training. Defaults to `None`.
        chief_only_hooks: Hooks of the chief's. Defaults to `None`.
        save_checkpoint_secs: How often a checkpoint is written, in seconds; `None`: never.
            Defaults to 600.
        save_summaries_steps: How often summaries are, in steps; `None`: never. Defaults to 100.
        config: The session's `ConfigProto`. Defaults to `None`.
        max_wait_secs: How long a worker waits for the chief, in seconds. Defaults to 7200.
        run_metadata: Filled by each step. Defaults to `None`.

    Returns:
        The last loss.

    Raises:
        ValueError: If there is no folder for what is to be written.
    """
    if logdir is None and is_chief:
        for name, value in (
            ("save_summaries_steps", save_summaries_steps),
            ("save_checkpoint_secs", save_checkpoint_secs),
        ):
            if value is not None:
                raise ValueError(f"{name} is {value!r}, and logdir None: set one of them.")
    loss = None
    with said_while_waiting(
        f"a session of {master or 'this process'} to open",
        change=f"A worker waits for the chief for {max_wait_secs} s (max_wait_secs).",
    ):
        opened = v1.train.MonitoredTrainingSession(
            master=master,
            is_chief=is_chief,
            checkpoint_dir=logdir,
            scaffold=scaffold,
            hooks=hooks,
            chief_only_hooks=chief_only_hooks,
            save_checkpoint_secs=save_checkpoint_secs,
            save_summaries_steps=save_summaries_steps,
            config=config,
            max_wait_secs=max_wait_secs,
        )
    with opened as session:
        while not session.should_stop():
            loss = session.run(train_op, run_metadata=run_metadata)
    return loss
