"""Runs predictions in a session, batch by batch."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.engine.sessions import SessionSettings, open_restored_session
from tfx_tpu_trainer.engine.template import ModelTemplate

v1 = tf.compat.v1


def predict_batches(
    template: ModelTemplate,
    predictions: Any,
    *,
    settings: SessionSettings,
    hooks: Sequence[v1.train.SessionRunHook],
    checkpoint_path: str | None,
) -> Generator[Any, None, None]:
    """Yields the predictions of each batch until the input ends.

    Closing the generator closes the session. The template's graph is the default one only while
    the session is opened, so generators may be interleaved with other work.

    Args:
        template: A template of mode `"infer"`, already placed.
        predictions: The part of the template's predictions to fetch.
        settings: Settings of the run.
        hooks: The caller's hooks, the placement's and the input's; the model's own are in the
            template.
        checkpoint_path: Checkpoint to restore; `None` initializes the variables.

    Yields:
        NumPy arrays in the structure of `predictions`.
    """
    with template.graph.as_default():
        session = open_restored_session(
            settings=settings,
            master=settings.master,
            scaffold=template.make_scaffold(),
            checkpoint_path=checkpoint_path,
            hooks=[*hooks, *template.hooks],
        )
    with session:
        while not session.should_stop():
            yield session.run(predictions)
