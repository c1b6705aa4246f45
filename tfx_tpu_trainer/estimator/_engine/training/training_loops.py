"""Which loops a training has, and how much of its steps outside of them is optimized."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.loops.pace import allows_loops, needs_no_call
from tfx_tpu_trainer.estimator._engine.loops.step_loop import HostLoop
from tfx_tpu_trainer.estimator._engine.reporting.summary_hooks import HostCallHook
from tfx_tpu_trainer.estimator._engine.sessions.opening import SessionSettings, folder_of
from tfx_tpu_trainer.estimator._engine.sessions.session_configs import Optimizing
from tfx_tpu_trainer.estimator._engine.training.fast_forward import FastForwardHook
from tfx_tpu_trainer.estimator._engine.training.loop_choice import (
    LoopChoice,
    choose_loop,
    log_no_loops,
    runs_on_one_thread,
)
from tfx_tpu_trainer.estimator._engine.training.training_plan import TrainingPlan

v1 = tf.compat.v1


def _may_loop(
    plan: TrainingPlan,
    hooks: Sequence[v1.train.SessionRunHook],
    settings: SessionSettings,
    master: str,
) -> bool:
    local = settings.is_chief and not master
    return plan.make_loop is not None and local and allows_loops(hooks)


def loop_of_all_steps(
    plan: TrainingPlan,
    hooks: Sequence[v1.train.SessionRunHook],
    settings: SessionSettings,
    master: str,
    jit_compile: bool | str | None,
) -> HostLoop | None:
    """Returns a loop to make every step in, where that is needed for the same bits each time.

    A step of a loop and one by itself may differ in the last bit, and which steps are made by
    themselves depends on the clock and on where a session starts. There is none where something
    else is fetched from a step than its loss.
    """
    if not same_each_time(settings):
        return None
    template = plan.template
    all_hooks = [*hooks, *template.hooks, *template.chief_hooks]
    reads_steps = (
        template.host_call is not None
        or any(isinstance(hook, HostCallHook) for hook in all_hooks)
        or v1.get_collection(v1.GraphKeys.SUMMARIES)
    )
    if reads_steps or jit_compile or not _may_loop(plan, all_hooks, settings, master):
        return None
    one_thread = runs_on_one_thread(plan.has_small_steps, jit_compile=jit_compile)
    if not (one_thread or settings.save_input_position):
        return None
    assert plan.make_loop is not None
    return plan.make_loop(one_thread)


def same_each_time(settings: SessionSettings) -> bool:
    """Tells whether a training was asked to make the same model each time."""
    seeded = v1.get_default_graph().seed is not None
    return settings.save_input_position or seeded or tf_private.is_op_determinism_enabled()


def fast_forward_of(
    plan: TrainingPlan,
    hooks: Sequence[v1.train.SessionRunHook],
    settings: SessionSettings,
    master: str,
    jit_compile: bool | str | None,
    loop: HostLoop | None,
) -> FastForwardHook | None:
    """Returns what runs ahead between the steps that hooks must see, where nothing forbids it."""
    asked = settings.jit_compile is not None
    if not _may_loop(plan, hooks, settings, master):
        if asked and jit_compile:
            log_no_loops()
        return None
    make_new = plan.make_loop
    assert make_new is not None

    def make_loop() -> HostLoop | LoopChoice:
        if loop is not None:
            return loop
        # Steps that hooks see are made by themselves, on all threads.
        one_thread = not same_each_time(settings) and runs_on_one_thread(
            plan.has_small_steps, jit_compile=jit_compile
        )
        plain = make_new(one_thread)
        return choose_loop(plain, plan.template, jit_compile=jit_compile, asked=asked)

    reports = (settings.save_summary_steps, settings.log_step_count_steps)
    return FastForwardHook(
        make_loop,
        plan.train_op,
        reporters=tuple(hook for hook in hooks if needs_no_call(hook)),
        save_steps=settings.save_checkpoints_steps or None,
        report_steps=tuple(steps for steps in reports if steps),
        last_step_of=plan.last_step_of,
        model_dir=folder_of(settings),
        watched_steps=settings.profile_steps,
    )


def optimizing_of(
    plan: TrainingPlan, loop: HostLoop | None, fast_forward: FastForwardHook | None
) -> Optimizing:
    """Tells how much of the graph is optimized: as much as is worth the time to the first step."""
    if plan.make_loop is None or loop is not None:
        return Optimizing.NOTHING
    if fast_forward is None:
        return Optimizing.DEPENDENCIES if plan.has_small_steps else Optimizing.CONFIGURED
    if fast_forward.has_long_loops and plan.has_small_steps:
        return Optimizing.NOTHING
    return Optimizing.DEPENDENCIES
