"""Runs training in a session."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.engine.checking.nan_checks import StopAtNanHook
from tfx_tpu_trainer.engine.checking.train_op_check import check_train_op
from tfx_tpu_trainer.engine.checkpointing import checkpoints
from tfx_tpu_trainer.engine.checkpointing.checkpoint_damage import damage_explained
from tfx_tpu_trainer.engine.checkpointing.checkpoints import check_writable
from tfx_tpu_trainer.engine.checkpointing.saver_hooks import choose_saver_hooks
from tfx_tpu_trainer.engine.checkpointing.savers import add_default_saver, fitted_scaffold
from tfx_tpu_trainer.engine.loops.host_loop import HostLoop, build_host_loop
from tfx_tpu_trainer.engine.loops.pace import allows_loops, needs_no_call
from tfx_tpu_trainer.engine.reporting.log_hooks import LossLogHook
from tfx_tpu_trainer.engine.reporting.summary_hooks import SummaryHook
from tfx_tpu_trainer.engine.sessions.opening import (
    SessionCreatorFn,
    SessionSettings,
    folder_of,
    open_training_session,
)
from tfx_tpu_trainer.engine.sessions.patient_session import PatientSession
from tfx_tpu_trainer.engine.sessions.run_errors import run_errors_explained
from tfx_tpu_trainer.engine.template import ModelTemplate
from tfx_tpu_trainer.engine.training.fast_forward import FastForwardHook
from tfx_tpu_trainer.engine.training.loop_choice import choose_loop, log_no_loops

v1 = tf.compat.v1
_logger = tf.get_logger()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """A training, placed and ready to run.

    Attributes:
        template: The model.
        train_op: What a session call runs: a step, or a loop of them.
        loss: Loss of the call's last step.
        stop_hook: Stops the session at the last step; `None` goes to the end of the input.
        steps_per_call: Steps of a session call, at most.
        make_loop: Returns a loop of steps that may run between the calls that hooks must see;
            `None` where every call must be seen.
        last_step_of: Returns the last step of a session that starts at a step; `None` where the
            end of the input ends it.
        session_creator: Makes the session's creator. Defaults to `ChiefSessionCreator`.
    """

    template: ModelTemplate
    train_op: Any
    loss: tf.Tensor
    stop_hook: v1.train.SessionRunHook | None
    steps_per_call: int = 1
    make_loop: Callable[[], HostLoop] | None = None
    last_step_of: Callable[[int], int | None] = lambda start: None
    session_creator: SessionCreatorFn = v1.train.ChiefSessionCreator


def plan_training_on_host(
    template: ModelTemplate, *, steps: int | None, max_steps: int | None
) -> TrainingPlan:
    """Plans a training on this host, a step in each session call that hooks must see.

    Args:
        template: A template of mode `"train"`, placed on the host.
        steps: Steps to make now; excludes `max_steps`.
        max_steps: Global step to stop at. With neither, training goes to the end of the input.

    Returns:
        The plan.
    """
    check_train_op(template)
    limited = steps is not None or max_steps is not None

    def last_step_of(start: int) -> int | None:
        last = max_steps if steps is None else start + steps
        # The original takes any number here: 2.5 steps end with the third.
        return None if last is None else math.ceil(last)

    return TrainingPlan(
        template=template,
        train_op=template.train_op,
        loss=template.loss,
        stop_hook=(
            v1.train.StopAtStepHook(num_steps=steps, last_step=max_steps) if limited else None
        ),
        make_loop=lambda: build_host_loop(template),
        last_step_of=last_step_of,
    )


def train(
    plan: TrainingPlan,
    *,
    settings: SessionSettings,
    hooks: Sequence[v1.train.SessionRunHook],
    master: str = "",
    saving_listeners: Sequence[v1.train.CheckpointSaverListener] = (),
) -> float | None:
    """Runs a plan until a hook or the end of the input stops it.

    Must be called with the template's graph as the default one.

    Args:
        plan: What to run.
        settings: Settings of the run.
        hooks: The caller's hooks, the placement's and the input's; the model's own are in the
            template.
        master: Address of the session's master. Defaults to `""`, this process.
        saving_listeners: Listeners told of every checkpoint.

    Returns:
        The loss of the last step, or `None` if the input gave no batch.

    Raises:
        ValueError: If there are listeners and no checkpoint is ever written.
        NanLossError: If the loss became NaN.
        tf.errors.OpError: If the latest checkpoint can't be read or does not fit the graph, or a
            step fails.
    """
    template, model_dir = plan.template, folder_of(settings)
    if settings.is_chief:
        check_writable(model_dir)
    _summarize_loss(plan.loss)
    stop_at_nan = StopAtNanHook(plan.loss, model_dir=model_dir)
    worker_hooks = [*hooks, stop_at_nan]
    if plan.stop_hook is not None:
        worker_hooks.insert(len(hooks), plan.stop_hook)
    if settings.log_step_count_steps:
        worker_hooks.append(LossLogHook(plan.loss, every_n_steps=settings.log_step_count_steps))
    worker_hooks.extend(template.hooks)
    checkpoint_path = checkpoints.latest_checkpoint(model_dir)
    scaffold = fitted_scaffold(
        template.make_scaffold(),
        checkpoint_path,
        keep_max=settings.keep_checkpoint_max,
        keep_every_n_hours=settings.keep_checkpoint_every_n_hours,
    )
    if scaffold.saver is None and not v1.get_collection(v1.GraphKeys.SAVERS):
        add_default_saver(
            keep_max=settings.keep_checkpoint_max,
            keep_every_n_hours=settings.keep_checkpoint_every_n_hours,
        )
    own_hooks = [*worker_hooks, *template.chief_hooks]
    saver_hooks = choose_saver_hooks(
        own_hooks,
        model_dir=model_dir,
        loss=plan.loss,
        save_secs=settings.save_checkpoints_secs,
        save_steps=settings.save_checkpoints_steps,
        save_graph_def=settings.checkpoint_save_graph_def,
        scaffold=scaffold,
        steps_per_call=plan.steps_per_call,
        listeners=saving_listeners,
    )
    fast_forward = _fast_forward(plan, own_hooks, settings, master)
    summary_steps, summary_hooks = settings.save_summary_steps, []
    if fast_forward is not None:
        worker_hooks.append(fast_forward)
        if summary_steps:
            summary_hooks = [
                SummaryHook(
                    every_n_steps=summary_steps,
                    output_dir=model_dir,
                    scaffold=scaffold,
                    step_reached=lambda: fast_forward.step,
                    step_after=fast_forward.step_after,
                )
            ]
            summary_steps = None
    with damage_explained(checkpoint_path):
        session = open_training_session(
            settings=settings,
            master=master,
            scaffold=scaffold,
            hooks=worker_hooks,
            chief_hooks=[
                *(hook for hook in saver_hooks if hook not in worker_hooks),
                *(hook for hook in template.chief_hooks if hook not in saver_hooks),
                *summary_hooks,
            ],
            summary_steps=summary_steps,
            session_creator=plan.session_creator,
        )
    last_loss = None
    with session, run_errors_explained(template, at_nan=stop_at_nan.position):
        calls = PatientSession(session)
        while not calls.should_stop():
            if fast_forward is not None and last_loss is not None:
                calls.run_step_fn(fast_forward.run_ahead)
            last_loss = calls.run([plan.train_op, plan.loss])[1]
    if last_loss is None:
        _logger.warning(
            "Training with estimator made no steps. Perhaps input is empty or misspecified%s.",
            "" if plan.steps_per_call == 1 else ", or too short for the first loop of steps",
        )
    _logger.info("Loss for final step: %s.", last_loss)
    return None if last_loss is None else float(last_loss)


def _fast_forward(
    plan: TrainingPlan,
    hooks: Sequence[v1.train.SessionRunHook],
    settings: SessionSettings,
    master: str,
) -> FastForwardHook | None:
    """Returns what runs ahead between the steps that hooks must see, where nothing forbids it."""
    local = settings.is_chief and not master
    if plan.make_loop is None or not local or not allows_loops(hooks):
        if settings.jit_compile:
            log_no_loops()
        return None
    reports = (settings.save_summary_steps, settings.log_step_count_steps)
    make_plain = plan.make_loop
    return FastForwardHook(
        lambda: choose_loop(make_plain(), plan.template, jit_compile=settings.jit_compile),
        plan.train_op,
        reporters=tuple(hook for hook in hooks if needs_no_call(hook)),
        save_steps=settings.save_checkpoints_steps or None,
        report_steps=tuple(steps for steps in reports if steps),
        last_step_of=plan.last_step_of,
        model_dir=folder_of(settings),
    )


def _summarize_loss(loss: tf.Tensor) -> None:
    summaries = v1.get_collection(v1.GraphKeys.SUMMARIES)
    if not any(summary.op.name == "loss" for summary in summaries):
        v1.summary.scalar("loss", loss)
    v1.add_to_collection(v1.GraphKeys.LOSSES, loss)
