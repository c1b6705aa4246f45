"""Runs training in a session."""

import contextlib
import dataclasses
import signal
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.processes import return_freed_memory
from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.checkpointing import checkpoints
from tfx_tpu_trainer.estimator._engine.checkpointing.checkpoint_errors import damage_explained
from tfx_tpu_trainer.estimator._engine.checkpointing.checkpoints import check_writable
from tfx_tpu_trainer.estimator._engine.checkpointing.input_position import (
    InputPosition,
    log_not_saved,
)
from tfx_tpu_trainer.estimator._engine.checkpointing.restored_variables import (
    log_restored_variables,
)
from tfx_tpu_trainer.estimator._engine.checkpointing.savers import (
    FiniteSaverHook,
    add_default_saver,
    choose_saver_hooks,
    fitted_scaffold,
)
from tfx_tpu_trainer.estimator._engine.loops.one_thread_loop import LoopReadyHook
from tfx_tpu_trainer.estimator._engine.loops.progress_hook import ProgressHook, Reporting
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import wants_each_step
from tfx_tpu_trainer.estimator._engine.nan_checks import StopAtNanHook
from tfx_tpu_trainer.estimator._engine.reporting.log_hooks import LossLogHook, ProfileHook
from tfx_tpu_trainer.estimator._engine.reporting.summaries import SteadySummaryHook, SummaryHook
from tfx_tpu_trainer.estimator._engine.sessions.lifecycle import (
    closed_in_thread,
    open_training_session,
)
from tfx_tpu_trainer.estimator._engine.sessions.preemption import Preemption, listening
from tfx_tpu_trainer.estimator._engine.sessions.reconnecting import (
    ReconnectingSession,
    needed_tasks,
)
from tfx_tpu_trainer.estimator._engine.sessions.run_errors import run_errors_explained
from tfx_tpu_trainer.estimator._engine.sessions.stall_watch import StallWatch
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate, SessionSettings, folder_of
from tfx_tpu_trainer.estimator._engine.training.awaited import AwaitedListener, wait_for
from tfx_tpu_trainer.estimator._engine.training.training_loops import (
    FastForwardHook,
    fast_forward_of,
    jit_compile_of,
    loop_of_all_steps,
    optimizing_of,
    same_each_time,
)
from tfx_tpu_trainer.estimator._engine.training.training_plan import TrainingPlan

v1 = tf.compat.v1
_logger = tf.get_logger()

# The first calls of a step and of a loop, which build what later ones use.
_CALLS_THAT_BUILD = 2


def train(
    plan: TrainingPlan,
    *,
    settings: SessionSettings,
    hooks: Sequence[v1.train.SessionRunHook],
    master: str = "",
    saving_listeners: Sequence[v1.train.CheckpointSaverListener] = (),
    reporting: Reporting | None = None,
) -> float | None:
    """Runs a plan until a hook, the end of the input or a signal stops it; returns the last loss, if any.

    The template's graph must be the default one. `hooks` are those of the caller, the place and the
    input's; the model's own are in the template.
    """
    jit_compile = jit_compile_of(settings.jit_compile, same_each_time=same_each_time(settings))
    # Before the loss gets a summary: where the model has summaries, steps can't all run in loops.
    loop = loop_of_all_steps(plan, hooks, settings, master, jit_compile)
    if loop is not None:
        plan = dataclasses.replace(plan, train_op=loop.loss, loss=loop.loss)
        hooks = [*hooks, LoopReadyHook(loop)]
    template, model_dir = plan.template, folder_of(settings)
    if settings.is_chief:
        check_writable(model_dir)
    _summarize_loss(plan.loss)
    checkpoint_path = checkpoints.latest_checkpoint(model_dir)

    # The order in which hooks are called, which users see: the caller's come first, and the model's own see a loss that
    # is not NaN.
    stop_at_nan = StopAtNanHook(plan.loss, model_dir=model_dir)
    progress_hook = _progress_hook(
        reporting, plan, settings, is_resumed=checkpoint_path is not None
    )
    profile_hook = _profile_hook(plan, settings)
    worker_hooks = _present(
        *hooks,
        plan.stop_hook,
        stop_at_nan,
        _loss_log_hook(plan, settings),
        *template.hooks,
        progress_hook,
        profile_hook,
    )
    own_hooks = [*worker_hooks, *template.chief_hooks]

    # Savers need the scaffold, and listeners the savers.
    scaffold = _scaffold(template, checkpoint_path, settings)
    saver_hooks = choose_saver_hooks(
        own_hooks,
        settings,
        loss=plan.loss,
        scaffold=scaffold,
        steps_per_call=plan.steps_per_call,
        listeners=saving_listeners,
        # Several processes save together, and a remote session's variables are elsewhere.
        in_thread=not master and plan.agreed_stop is None and _none_looks(own_hooks),
    )
    position = _input_position(plan, settings, master, has_saver=bool(saver_hooks))
    # The plan knows the last step of its own stop_hook, but not that of a program's hook.
    others = [hook for hook in own_hooks if hook is not plan.stop_hook]
    awaited = next((each for each in saving_listeners if isinstance(each, AwaitedListener)), None)
    if awaited is not None:
        wait_for(awaited, saver_hooks=saver_hooks, hooks=own_hooks)
    fast_forward = fast_forward_of(
        plan,
        others,
        settings,
        master,
        jit_compile,
        loop,
        awaited_steps=awaited and awaited.every_steps,
    )
    summary_hooks = _summary_hooks(plan, scaffold, settings, master, fast_forward)
    if saver_hooks and settings.is_chief:
        listeners = [hook.listener for hook in _present(progress_hook, position)]
        tf_private.add_checkpoint_listeners(saver_hooks[0], listeners)

    with damage_explained(checkpoint_path):
        session = open_training_session(
            settings=settings,
            master=master,
            scaffold=scaffold,
            # Positions are saved after checkpoints, and before processes agree to stop together.
            hooks=[*worker_hooks, *_present(position, plan.agreed_stop, fast_forward)],
            chief_hooks=[
                *(hook for hook in saver_hooks if hook not in own_hooks),
                # In the model's order: one may prepare what the next one saves.
                *template.chief_hooks,
                *summary_hooks,
            ],
            summary_steps=None if summary_hooks else settings.save_summary_steps,
            optimizing=optimizing_of(plan, loop, fast_forward),
            session_creator=plan.session_creator,
        )
    return_freed_memory()
    watch = StallWatch(
        "Training",
        timeout_secs=settings.stall_timeout_secs,
        steps_done=v1.train.get_global_step() if _can_be_asked(plan, master) else None,
        tasks=needed_tasks(settings, master),
    )
    calls, last_loss = ReconnectingSession(session, watch), None
    # Left from last to first: the profile ends and the checkpoint is complete before the session closes, and
    # `_stop_reported` logs the checkpoint when everything is written.
    with (
        listening() as stop,
        stop.postponed(plan.end_loop),
        _stop_reported(stop, model_dir),
        watch,
        closed_in_thread(session, calls, master=master),
        run_errors_explained(template, at_nan=stop_at_nan.position),
        _written_to_the_end(saver_hooks),
        profile_hook or contextlib.nullcontext(),
    ):
        # At the end of the input an error ends the block, which the session swallows.
        for loss in _steps(plan, calls, stop, fast_forward):
            last_loss = loss
    if last_loss is None:
        _logger.warning(
            "Training with estimator made no steps. Perhaps input is empty or misspecified%s.",
            "" if plan.steps_per_call == 1 else ", or too short for the first loop of steps",
        )
    _logger.info("Loss for final step: %s.", last_loss)
    return None if last_loss is None else float(last_loss)


def _present(*hooks: Any) -> list[Any]:
    return [hook for hook in hooks if hook is not None]


def _progress_hook(
    reporting: Reporting | None, plan: TrainingPlan, settings: SessionSettings, *, is_resumed: bool
) -> ProgressHook | None:
    if reporting is None or not reporting.progress.is_watched or not settings.is_chief:
        return None
    return ProgressHook(reporting, plan.loss, is_resumed=is_resumed)


def _profile_hook(plan: TrainingPlan, settings: SessionSettings) -> ProfileHook | None:
    if settings.profile_steps is None or not settings.is_chief:
        return None
    first, last = settings.profile_steps
    return ProfileHook(
        first, last, steps_per_call=plan.steps_per_call, output_dir=folder_of(settings)
    )


def _loss_log_hook(plan: TrainingPlan, settings: SessionSettings) -> LossLogHook | None:
    every = settings.log_step_count_steps or plan.log_loss_every
    return LossLogHook(plan.loss, every_n_steps=every) if every else None


def _scaffold(
    template: ModelTemplate, checkpoint_path: str | None, settings: SessionSettings
) -> v1.train.Scaffold:
    """Returns the model's scaffold, with a saver that keeps as many checkpoints as configured."""
    own = template.make_scaffold()
    if checkpoint_path is None:
        # A scaffold_fn may have set initializers; a resumed training runs none.
        log_restored_variables()
    kept: dict[str, Any] = {
        "keep_max": settings.keep_checkpoint_max,
        "keep_every_n_hours": settings.keep_checkpoint_every_n_hours,
    }
    scaffold = fitted_scaffold(own, checkpoint_path, **kept)
    if scaffold.saver is None and not v1.get_collection(v1.GraphKeys.SAVERS):
        add_default_saver(**kept)
    return scaffold


def _input_position(
    plan: TrainingPlan, settings: SessionSettings, master: str, *, has_saver: bool
) -> InputPosition | None:
    """Returns the hook that saves the input's position with each checkpoint, if configured."""
    if not settings.save_input_position:
        return None
    if master:
        # Not tested: the process with the iterators would have to save.
        log_not_saved("the steps run in sessions of other processes")
        return None
    saves = has_saver and settings.is_chief
    if not (plan.agreed_stop or saves):
        return None
    return InputPosition(folder_of(settings), plan.saved_input, reading=plan.reading)


def _summary_hooks(
    plan: TrainingPlan,
    scaffold: v1.train.Scaffold,
    settings: SessionSettings,
    master: str,
    fast_forward: FastForwardHook | None,
) -> list[v1.train.SessionRunHook]:
    """Returns hooks that write summaries in place of the session's own hook, if needed."""
    steps, model_dir = settings.save_summary_steps, folder_of(settings)
    if not steps:
        return []
    if fast_forward is not None:
        return [
            SummaryHook(
                every_n_steps=steps,
                output_dir=model_dir,
                scaffold=scaffold,
                step_reached=lambda: fast_forward.step,
                step_after=fast_forward.step_after,
            )
        ]
    calls_are_loops = _can_be_asked(plan, master) and plan.make_loop is None
    if calls_are_loops and _only_loss_is_summarized(scaffold):
        return [SteadySummaryHook(save_steps=steps, output_dir=model_dir, scaffold=scaffold)]
    return []


def _can_be_asked(plan: TrainingPlan, master: str) -> bool:
    """Returns whether the global step can be read while a loop runs: only in this process."""
    return not master and plan.session_creator is v1.train.ChiefSessionCreator


def _steps(
    plan: TrainingPlan,
    calls: ReconnectingSession,
    stop: Preemption,
    fast_forward: FastForwardHook | None,
) -> Iterator[Any]:
    """Makes session calls until a hook or a signal stops them, and yields their losses."""
    calls_made = 0
    # If several processes make each step together, none may leave the loop by itself on a signal: through the hook
    # `agreed_stop`, all see `should_stop` after the same step.
    while not calls.should_stop() and (plan.agreed_stop or stop.number is None):
        # The loop that runs ahead is built after the first step, so as not to delay it.
        if fast_forward is not None and calls_made:
            calls.run_step_fn(fast_forward.run_ahead)
        yield calls.run([plan.train_op, plan.loss])[1]
        calls_made += 1
        if calls_made <= _CALLS_THAT_BUILD:
            return_freed_memory()


@contextlib.contextmanager
def _stop_reported(stop: Preemption, model_dir: str) -> Iterator[None]:
    """Logs the last checkpoint of a training that a signal has stopped."""
    yield
    if stop.number is not None:
        _logger.warning(
            "Training was stopped by %s. Start it again to resume from %s.",
            signal.Signals(stop.number).name,
            checkpoints.latest_checkpoint(model_dir) or "the start: it writes no checkpoints",
        )


@contextlib.contextmanager
def _written_to_the_end(hooks: Sequence[v1.train.CheckpointSaverHook]) -> Iterator[None]:
    """Waits for a checkpoint that is being written if the block fails; else the hook's `end` waits."""
    try:
        yield
    except BaseException:
        for hook in hooks:
            if isinstance(hook, FiniteSaverHook):
                hook.close()
        raise


def _none_looks(hooks: Sequence[v1.train.SessionRunHook]) -> bool:
    """Returns whether no hook uses, after a step, the checkpoint of that step."""
    # TensorFlow's and the engine's do not, nor those that are not called every step.
    known = ("tensorflow.", "tfx_tpu_trainer.estimator._engine.")
    return all(
        type(hook).__module__.startswith(known) or not wants_each_step(hook) for hook in hooks
    )


def _only_loss_is_summarized(scaffold: v1.train.Scaffold) -> bool:
    summaries = v1.get_collection(v1.GraphKeys.SUMMARIES)
    of_loss = [summary.op.name for summary in summaries] == ["loss"]
    # Before it is finalized, a scaffold has a summary_op only if the model gave it one.
    return of_loss and scaffold.summary_op is None


def _summarize_loss(loss: tf.Tensor) -> None:
    summaries = v1.get_collection(v1.GraphKeys.SUMMARIES)
    if not any(summary.op.name == "loss" for summary in summaries):
        v1.summary.scalar("loss", loss)
    v1.add_to_collection(v1.GraphKeys.LOSSES, loss)
