"""Evaluates checkpoints in a loop, without an estimator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.waiting import said_while_waiting
from tfx_tpu_trainer.compat.contrib.tf_private import (
    StopAfterNEvalsHook,
    evaluate_once,
    get_or_create_eval_step,
)

v1 = tf.compat.v1

__all__ = [
    "StopAfterNEvalsHook",
    "SummaryAtEndHook",
    "evaluate_once",
    "evaluate_repeatedly",
    "get_or_create_eval_step",
]


class SummaryAtEndHook(v1.train.SessionRunHook):
    """Writes summaries when an evaluation ends, at the training's step."""

    def __init__(
        self,
        log_dir: str | None = None,
        summary_writer: Any = None,
        summary_op: Any = None,
        feed_dict: Any = None,
    ) -> None:
        """Keeps what to write.

        Args:
            log_dir: The folder to write into. Defaults to `None`; then there must be a writer.
            summary_writer: What writes. Defaults to `None`, a `FileWriter` of the folder.
            summary_op: The summaries. Defaults to `None`, all of the graph.
            feed_dict: Values to feed to them. Defaults to `None`.
        """
        self._log_dir, self._writer = log_dir, summary_writer
        self._summary_op, self._feed_dict = summary_op, feed_dict
        self._step: Any = None

    def begin(self) -> None:
        """Looks for the summaries and the step.

        Raises:
            ValueError: If there is neither a folder nor a writer.
        """
        if self._writer is None and not self._log_dir:
            raise ValueError("SummaryAtEndHook needs log_dir or summary_writer.")
        if self._summary_op is None:
            self._summary_op = v1.summary.merge_all()
        self._step = v1.train.get_or_create_global_step()

    def after_create_session(self, session: v1.Session, coord: Any) -> None:
        """Opens the writer.

        Args:
            session: Not used.
            coord: Not used.
        """
        del coord
        if self._writer is None:
            self._writer = v1.summary.FileWriterCache.get(self._log_dir)

    def end(self, session: v1.Session) -> None:
        """Writes.

        Args:
            session: Where the summaries run.
        """
        if self._summary_op is not None:
            text = session.run(self._summary_op, self._feed_dict)
            self._writer.add_summary(text, v1.train.global_step(session, self._step))
        self._writer.flush()


def evaluate_repeatedly(
    checkpoint_dir: str,
    master: str = "",
    scaffold: Any = None,
    eval_ops: Any = None,
    feed_dict: Any = None,
    final_ops: Any = None,
    final_ops_feed_dict: Any = None,
    eval_interval_secs: float = 60,
    hooks: Sequence[Any] | None = None,
    config: Any = None,
    max_number_of_evaluations: int | None = None,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
) -> Any:
    """Evaluates each new checkpoint of a folder.

    Args:
        checkpoint_dir: The folder.
        master: The session's target. Defaults to `""`, this process.
        scaffold: How a session is initialized. Defaults to `None`, by restoring the checkpoint.
        eval_ops: Run until a hook ends the evaluation. Defaults to `None`.
        feed_dict: Values to feed to them. Defaults to `None`.
        final_ops: Run once, when the evaluation ends. Defaults to `None`.
        final_ops_feed_dict: Values to feed to these. Defaults to `None`.
        eval_interval_secs: The least time between two evaluations, in seconds. Defaults to 60.
        hooks: Hooks of the evaluations. Defaults to `None`.
        config: The sessions' `ConfigProto`. Defaults to `None`.
        max_number_of_evaluations: Most evaluations to run. Defaults to `None`, no end.
        timeout: How long to wait for a checkpoint, in seconds. Defaults to `None`, forever.
        timeout_fn: Whether a wait that was too long is the end. Defaults to `None`, it is.

    Returns:
        The last evaluation's final_ops, `None` without any.

    Raises:
        ValueError: If max_number_of_evaluations is not positive.
    """
    most = max_number_of_evaluations
    if most is not None and most <= 0:
        raise ValueError(f"max_number_of_evaluations is at least 1, or None; got {most!r}.")
    get_or_create_eval_step()
    kept = list(hooks or ())
    final = v1.train.FinalOpsHook(final_ops, final_ops_feed_dict)
    kept.append(final)
    checkpoints = tf.train.checkpoints_iterator(
        checkpoint_dir, eval_interval_secs, timeout, timeout_fn
    )
    count = 0
    while True:
        with said_while_waiting(
            f"a new checkpoint in {checkpoint_dir}", change=f"The time limit is timeout={timeout}."
        ):
            path = next(checkpoints, None)
        if path is None:
            break
        count += 1
        # The evaluations' own hooks: those that are given see every one of them.
        evaluate_once(
            path,
            master=master,
            scaffold=scaffold,
            eval_ops=eval_ops,
            feed_dict=feed_dict,
            hooks=list(kept),
            config=config,
        )
        if most is not None and count >= most:
            break
    return final.final_ops_values
