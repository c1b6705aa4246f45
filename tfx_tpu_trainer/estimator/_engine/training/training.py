"""Runs training in a session."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import Iterator, Sequence

import tensorflow as tf

from tfx_tpu_trainer._support.processes import return_freed_memory
from tfx_tpu_trainer._support.progress import Progress
from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.checking.nan_checks import StopAtNanHook
from tfx_tpu_trainer.estimator._engine.checkpointing import checkpoints
from tfx_tpu_trainer.estimator._engine.checkpointing.checkpoint_damage import damage_explained
from tfx_tpu_trainer.estimator._engine.checkpointing.checkpoints import check_writable
from tfx_tpu_trainer.estimator._engine.checkpointing.input_position import (
    InputPosition,
    log_not_saved,
)
from tfx_tpu_trainer.estimator._engine.checkpointing.saver_hooks import (
    FiniteSaverHook,
    choose_saver_hooks,
)
from tfx_tpu_trainer.estimator._engine.checkpointing.savers import (
    add_default_saver,
    fitted_scaffold,
)
from tfx_tpu_trainer.estimator._engine.checkpointing.taken_values import log_taken_values
from tfx_tpu_trainer.estimator._engine.loops.one_thread_loop import LoopReadyHook
from tfx_tpu_trainer.estimator._engine.loops.pace import wants_each_step
from tfx_tpu_trainer.estimator._engine.loops.progress_hook import ProgressHook
from tfx_tpu_trainer.estimator._engine.reporting.log_hooks import LossLogHook
from tfx_tpu_trainer.estimator._engine.reporting.profile_hook import ProfileHook
from tfx_tpu_trainer.estimator._engine.reporting.summary_hooks import (
    SteadySummaryHook,
    SummaryHook,
)
from tfx_tpu_trainer.estimator._engine.sessions.closing import closed_aside
from tfx_tpu_trainer.estimator._engine.sessions.opening import (
    SessionSettings,
    folder_of,
    open_training_session,
)
from tfx_tpu_trainer.estimator._engine.sessions.patient_creator import hosts_of
from tfx_tpu_trainer.estimator._engine.sessions.patient_session import PatientSession
from tfx_tpu_trainer.estimator._engine.sessions.polite_stop import PoliteStop, listening
from tfx_tpu_trainer.estimator._engine.sessions.run_errors import run_errors_explained
from tfx_tpu_trainer.estimator._engine.sessions.stall_watch import StallWatch
from tfx_tpu_trainer.estimator._engine.training.loop_choice import jit_compile_of
from tfx_tpu_trainer.estimator._engine.training.training_loops import (
    fast_forward_of,
    loop_of_all_steps,
    optimizing_of,
    same_each_time,
)
from tfx_tpu_trainer.estimator._engine.training.training_plan import TrainingPlan

v1 = tf.compat.v1
_logger = tf.get_logger()

# The first call of a step, and of a loop.
_CALLS_THAT_BUILD = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reporting:
    """How it is told how far a training is.

    Attributes:
        progress: Whom to tell; a phase of it is under way.
        steps: Steps to make from where the session starts; excludes `max_steps`.
        max_steps: Global step to stop at.
        rows_per_step: Rows of a step over all replicas; `None` where nobody has said.
        every_steps: Steps from one log line to the next, at least; `None` where none are requested.
    """

    progress: Progress
    steps: int | None = None
    max_steps: int | None = None
    rows_per_step: int | None = None
    every_steps: int | None = None

    def hook(self, loss: tf.Tensor, *, is_resumed: bool) -> ProgressHook:
        """Returns the hook that tells."""
        return ProgressHook(
            self.progress,
            loss,
            steps=self.steps,
            max_steps=self.max_steps,
            rows_per_step=self.rows_per_step,
            report_every=self.every_steps,
            is_resumed=is_resumed,
        )


def train(
    plan: TrainingPlan,
    *,
    settings: SessionSettings,
    hooks: Sequence[v1.train.SessionRunHook],
    master: str = "",
    saving_listeners: Sequence[v1.train.CheckpointSaverListener] = (),
    reporting: Reporting | None = None,
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
        reporting: How it is told how far the training is. Defaults to `None`: nobody is told.

    Returns:
        The loss of the last step, or `None` if the input gave no batch.

    Raises:
        ValueError: If there are listeners and no checkpoint is ever written.
        NanLossError: If the loss became NaN.
        StalledError: If no step was made for `stall_timeout_secs`.
        StoppedBySignal: SIGTERM asked the process to stop; its checkpoint is written.
        KeyboardInterrupt: The same for SIGINT.
        tf.errors.OpError: If the latest checkpoint can't be read or does not fit the graph, or a
            step fails.
    """
    jit_compile = jit_compile_of(settings.jit_compile, same_each_time=same_each_time(settings))
    loop = loop_of_all_steps(plan, hooks, settings, master, jit_compile)
    if loop is not None:
        plan = dataclasses.replace(plan, train_op=loop.loss, loss=loop.loss)
        hooks = [*hooks, LoopReadyHook(loop)]
    template, model_dir = plan.template, folder_of(settings)
    if settings.is_chief:
        check_writable(model_dir)
    _summarize_loss(plan.loss)
    stop_at_nan = StopAtNanHook(plan.loss, model_dir=model_dir)
    worker_hooks = [*hooks, stop_at_nan]
    if plan.stop_hook is not None:
        worker_hooks.insert(len(hooks), plan.stop_hook)
    if log_every := settings.log_step_count_steps or plan.log_loss_every:
        worker_hooks.append(LossLogHook(plan.loss, every_n_steps=log_every))
    worker_hooks.extend(template.hooks)
    checkpoint_path = checkpoints.latest_checkpoint(model_dir)
    progress_hook = None
    if reporting is not None and reporting.progress.is_watched and settings.is_chief:
        progress_hook = reporting.hook(plan.loss, is_resumed=checkpoint_path is not None)
        worker_hooks.append(progress_hook)
    profile_hook = None
    if settings.profile_steps is not None and settings.is_chief:
        first, last = settings.profile_steps
        profile_hook = ProfileHook(
            first, last, steps_per_call=plan.steps_per_call, output_dir=model_dir
        )
        worker_hooks.append(profile_hook)
    own_scaffold = template.make_scaffold()
    if checkpoint_path is None:
        # scaffold_fn may have set initializers; those of a resumed training do not run.
        log_taken_values()
    scaffold = fitted_scaffold(
        own_scaffold,
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
        first_secs=settings.first_checkpoint_secs,
        save_graph_def=settings.checkpoint_save_graph_def,
        scaffold=scaffold,
        steps_per_call=plan.steps_per_call,
        listeners=saving_listeners,
        # Several processes save together, and sessions of another one have their variables elsewhere.
        aside=not master and plan.agreed_stop is None and _none_looks(own_hooks),
    )
    if progress_hook is not None and saver_hooks:
        tf_private.add_checkpoint_listeners(saver_hooks[0], [progress_hook.listener])
    if settings.save_input_position and master:
        # A position is saved by the process whose iterators it is of, which no test could show yet.
        log_not_saved("the steps run in sessions of other processes")
    elif settings.save_input_position and (plan.agreed_stop or (saver_hooks and settings.is_chief)):
        position = InputPosition(model_dir, plan.saved_input)
        worker_hooks.append(position)
        if saver_hooks and settings.is_chief:
            tf_private.add_checkpoint_listeners(saver_hooks[0], [position.listener])
    if plan.agreed_stop is not None:
        worker_hooks.append(plan.agreed_stop)
    # It knows the training's own last step, but not one that a hook of the program stops at.
    others = [hook for hook in own_hooks if hook is not plan.stop_hook]
    fast_forward = fast_forward_of(plan, others, settings, master, jit_compile, loop)
    # A loop on this host can be asked how far it is.
    asks = not master and plan.session_creator is v1.train.ChiefSessionCreator
    summary_steps, summary_hooks = settings.save_summary_steps, list[v1.train.SessionRunHook]()
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
    elif summary_steps and asks and plan.make_loop is None and _only_loss_is_summarized(scaffold):
        summary_hooks = [
            SteadySummaryHook(save_steps=summary_steps, output_dir=model_dir, scaffold=scaffold)
        ]
        summary_steps = None
    with damage_explained(checkpoint_path):
        session = open_training_session(
            settings=settings,
            master=master,
            scaffold=scaffold,
            hooks=worker_hooks,
            chief_hooks=[
                *(hook for hook in saver_hooks if hook not in own_hooks),
                # In the model's order: one may make ready what the next one saves.
                *template.chief_hooks,
                *summary_hooks,
            ],
            summary_steps=summary_steps,
            optimizing=optimizing_of(plan, loop, fast_forward),
            session_creator=plan.session_creator,
        )
    return_freed_memory()
    last_loss, calls_made = None, 0
    watch = StallWatch(
        "Training",
        timeout_secs=settings.stall_timeout_secs,
        steps_done=v1.train.get_global_step() if asks else None,
        hosts=hosts_of(settings, master),
    )
    calls = PatientSession(session, watch)
    with (
        listening() as stop,
        stop.postponed(plan.end_loop),
        _stop_reported(stop, model_dir),
        watch,
        closed_aside(session, calls, master=master),
        run_errors_explained(template, at_nan=stop_at_nan.position),
        _written_to_the_end(saver_hooks),
        profile_hook or contextlib.nullcontext(),
    ):
        while not calls.should_stop() and (plan.agreed_stop or stop.number is None):
            # The loop that runs ahead is built after the first step, which need not wait for it.
            if fast_forward is not None and last_loss is not None:
                calls.run_step_fn(fast_forward.run_ahead)
            last_loss = calls.run([plan.train_op, plan.loss])[1]
            calls_made += 1
            if calls_made <= _CALLS_THAT_BUILD:
                return_freed_memory()
    if last_loss is None:
        _logger.warning(
            "Training with estimator made no steps. Perhaps input is empty or misspecified%s.",
            "" if plan.steps_per_call == 1 else ", or too short for the first loop of steps",
        )
    _logger.info("Loss for final step: %s.", last_loss)
    return None if last_loss is None else float(last_loss)


@contextlib.contextmanager
def _stop_reported(stop: PoliteStop, model_dir: str) -> Iterator[None]:
    """Says where a training stands that was asked to stop, once its checkpoint is written."""
    yield
    if stop.number is not None:
        _logger.warning(
            "Training was stopped by %s. Start it again to resume from %s.",
            signal.Signals(stop.number).name,
            checkpoints.latest_checkpoint(model_dir) or "the start: it writes no checkpoints",
        )


@contextlib.contextmanager
def _written_to_the_end(hooks: Sequence[v1.train.CheckpointSaverHook]) -> Iterator[None]:
    """Waits for a checkpoint that is being written where the block fails; otherwise the hook's `end` does."""
    try:
        yield
    except BaseException:
        for hook in hooks:
            if isinstance(hook, FiniteSaverHook):
                hook.close()
        raise


def _none_looks(hooks: Sequence[v1.train.SessionRunHook]) -> bool:
    """Tells whether no hook could look, after a step, for the checkpoint of that step.

    TensorFlow's, the engine's and those that do not want each step do not.
    """
    known = ("tensorflow.", "tfx_tpu_trainer.estimator._engine.")
    return all(
        type(hook).__module__.startswith(known) or not wants_each_step(hook) for hook in hooks
    )


def _only_loss_is_summarized(scaffold: v1.train.Scaffold) -> bool:
    summaries = v1.get_collection(v1.GraphKeys.SUMMARIES)
    of_loss = [summary.op.name for summary in summaries] == ["loss"]
    # It has one only where the model gave it one: its own is made when it is finalized.
    return of_loss and scaffold.summary_op is None


def _summarize_loss(loss: tf.Tensor) -> None:
    summaries = v1.get_collection(v1.GraphKeys.SUMMARIES)
    if not any(summary.op.name == "loss" for summary in summaries):
        v1.summary.scalar("loss", loss)
    v1.add_to_collection(v1.GraphKeys.LOSSES, loss)
