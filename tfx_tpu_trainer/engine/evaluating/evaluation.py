"""Runs an evaluation in a session."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.engine.checkpointing.checkpoints import check_writable
from tfx_tpu_trainer.engine.evaluating.evaluation_plan import (
    GLOBAL_STEP,
    SECONDS_PER_CALL,
    EvaluationPlan,
)
from tfx_tpu_trainer.engine.loops.pace import allows_loops
from tfx_tpu_trainer.engine.sessions.opening import SessionSettings, open_restored_session
from tfx_tpu_trainer.engine.sessions.patient_session import PatientSession
from tfx_tpu_trainer.engine.sessions.run_errors import run_errors_explained

v1 = tf.compat.v1
_logger = tf.get_logger()


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalResult:
    """What an evaluation found.

    Attributes:
        metrics: Name -> NumPy value, as `evaluate()` returns it: the model's metrics, `loss`
            (on the host the mean of the batch losses, each batch weighing the same, as in the
            original; on cores `loss_by_rows`) and `global_step`.
        loss_by_rows: The mean of the batch losses, each weighing by its rows: exact for losses
            that are means over rows. NaN where batches have no rows.
        num_examples: Rows seen; `None` where the features have no axis to count.
        global_step: Global step of the variables evaluated.
        checkpoint_path: The checkpoint evaluated; `None` for freshly initialized variables.
        seconds: Wall time of the session, building the graph left out.
    """

    metrics: Mapping[str, Any]
    loss_by_rows: float
    num_examples: int | None
    global_step: int
    checkpoint_path: str | None
    seconds: float


def evaluate(
    plan: EvaluationPlan,
    *,
    settings: SessionSettings,
    hooks: Sequence[v1.train.SessionRunHook],
    checkpoint_path: str | None,
) -> EvalResult:
    """Runs a plan over its input and gathers the metrics.

    Must be called with the template's graph as the default one.

    Args:
        plan: What to run.
        settings: Settings of the run.
        hooks: The caller's hooks, the placement's and the input's; the model's own are in the
            template.
        checkpoint_path: Checkpoint to restore; `None` initializes the variables.

    Returns:
        The result.

    Raises:
        ValueError: If the input has no batch.
    """
    # Its events are written at the end.
    check_writable(settings.model_dir)
    update_op, stop_hook = plan.update_op, plan.stop_hook
    feed_dict = {}
    if allows_loops([*hooks, *plan.template.hooks]):
        if plan.make_loop is not None:
            update_op, stop_hook = plan.make_loop()
        elif plan.seconds_per_call is not None:
            feed_dict = {plan.seconds_per_call: SECONDS_PER_CALL}
    final_values = v1.train.FinalOpsHook((dict(plan.values), plan.sums.values))
    all_hooks = [*hooks, *plan.template.hooks, final_values, stop_hook]
    scaffold = _with_default_local_init(plan.template.make_scaffold())
    _logger.info("Starting evaluation at %s", time.strftime("%Y-%m-%dT%H:%M:%S"))
    started = time.monotonic()
    with open_restored_session(
        settings=settings,
        master=settings.evaluation_master,
        scaffold=scaffold,
        checkpoint_path=checkpoint_path,
        hooks=all_hooks,
        session_creator=plan.session_creator,
    ) as session:
        calls = PatientSession(session)
        with run_errors_explained(plan.template):
            while not calls.should_stop():
                calls.run(update_op, feed_dict=feed_dict)
    seconds = time.monotonic() - started
    _logger.info("Inference Time : %0.5fs", seconds)
    _logger.info("Finished evaluation at %s", time.strftime("%Y-%m-%d-%H:%M:%S"))
    metrics, sums = final_values.final_ops_values
    if not sums["batches"]:
        raise ValueError(
            "evaluate() got no batch: the input is empty. Check the files that input_fn reads, "
            "and that a batch size with drop_remainder=True is not larger than the data."
        )
    rows = int(sums["rows"])
    return EvalResult(
        metrics=metrics,
        loss_by_rows=float(sums["loss_times_rows"] / rows) if rows else float("nan"),
        num_examples=rows or None,
        global_step=int(metrics[GLOBAL_STEP]),
        checkpoint_path=checkpoint_path,
        seconds=seconds,
    )


def _with_default_local_init(scaffold: v1.train.Scaffold) -> v1.train.Scaffold:
    """Adds the metrics' own initialization to a local_init_op that the user gave."""
    if scaffold.local_init_op is None:
        return scaffold
    both = tf.group(scaffold.local_init_op, v1.train.Scaffold.default_local_init_op())
    return v1.train.Scaffold(local_init_op=both, copy_from_scaffold=scaffold)
