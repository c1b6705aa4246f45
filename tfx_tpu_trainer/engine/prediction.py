"""Runs predictions in a session, batch by batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.engine.sessions import SessionSettings, open_restored_session
from tfx_tpu_trainer.engine.template import ModelTemplate

v1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class PredictionPlan:
    """A prediction, placed and ready to run.

    Attributes:
        template: The model.
        fetches: The predictions of one batch.
        rows: Rows of the batch; none mean that the input has ended. `None` where the end of the
            input ends the session by itself.
    """

    template: ModelTemplate
    fetches: Any
    rows: tf.Tensor | None = None


def predict_batches(
    plan: PredictionPlan,
    *,
    settings: SessionSettings,
    hooks: Sequence[v1.train.SessionRunHook],
    checkpoint_path: str | None,
) -> Generator[Any, None, None]:
    """Yields the predictions of each batch until the input ends.

    Closing the generator closes the session. The template's graph is the default one only while
    the session is opened, so generators may be interleaved with other work.

    Args:
        plan: What to run.
        settings: Settings of the run.
        hooks: The caller's hooks, the placement's and the input's; the model's own are in the
            template.
        checkpoint_path: Checkpoint to restore; `None` initializes the variables.

    Yields:
        NumPy arrays in the structure of the plan's fetches.
    """
    with plan.template.graph.as_default():
        session = open_restored_session(
            settings=settings,
            master=settings.master,
            scaffold=plan.template.make_scaffold(),
            checkpoint_path=checkpoint_path,
            hooks=[*hooks, *plan.template.hooks],
        )
    fetches = [plan.fetches] if plan.rows is None else [plan.fetches, plan.rows]
    with session:
        while not session.should_stop():
            predictions, *rows = session.run(fetches)
            if rows and not rows[0]:
                return
            yield predictions
