"""Implements slim's evaluation loop, which runs an op several times on each new checkpoint."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import tensorflow as tf

from tfx_tpu_trainer.compat.contrib import training
from tfx_tpu_trainer.compat.contrib.framework import get_variables_to_restore
from tfx_tpu_trainer.compat.contrib.training import wait_for_new_checkpoint

v1 = tf.compat.v1
# The argument's value that means all summaries of the graph.
_USE_DEFAULT: Final = 0

__all__ = ["evaluation_loop", "wait_for_new_checkpoint"]


def evaluation_loop(
    master: str,
    checkpoint_dir: str,
    logdir: str,
    num_evals: int = 1,
    initial_op: Any = None,
    initial_op_feed_dict: Any = None,
    init_fn: Callable[[Any], Any] | None = None,
    eval_op: Any = None,
    eval_op_feed_dict: Any = None,
    final_op: Any = None,
    final_op_feed_dict: Any = None,
    summary_op: Any = _USE_DEFAULT,
    summary_op_feed_dict: Any = None,
    variables_to_restore: Any = None,
    eval_interval_secs: float = 60,
    max_number_of_evaluations: int | None = None,
    session_config: Any = None,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
    hooks: Sequence[Any] | None = None,
) -> Any:
    """Evaluates each new checkpoint of a folder."""
    return training.evaluate_repeatedly(
        checkpoint_dir,
        master=master,
        scaffold=_scaffold(initial_op, initial_op_feed_dict, init_fn, variables_to_restore),
        eval_ops=eval_op,
        feed_dict=eval_op_feed_dict,
        final_ops=final_op,
        final_ops_feed_dict=final_op_feed_dict,
        eval_interval_secs=eval_interval_secs,
        hooks=_hooks(num_evals, logdir, summary_op, summary_op_feed_dict, hooks),
        config=session_config,
        max_number_of_evaluations=max_number_of_evaluations,
        timeout=timeout,
        timeout_fn=timeout_fn,
    )


def _scaffold(op: Any, feed: Any, function: Any, variables: Any) -> Any:
    kept = get_variables_to_restore() if variables is None else variables
    # A Scaffold passes itself to the function; slim's takes the session alone.
    wrapped = None if function is None else lambda _, session: function(session)
    return v1.train.Scaffold(
        init_op=op, init_feed_dict=feed, init_fn=wrapped, saver=v1.train.Saver(kept)
    )


def _hooks(count: int, logdir: str, summary_op: Any, feed: Any, more: Any) -> list[Any]:
    made: list[Any] = [training.StopAfterNEvalsHook(count)]
    summaries = v1.summary.merge_all() if summary_op == _USE_DEFAULT else summary_op
    if summaries is not None:
        made.append(training.SummaryAtEndHook(log_dir=logdir, summary_op=summaries, feed_dict=feed))
    return made + list(more or ())
