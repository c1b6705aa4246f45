"""Runs training in a session."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.engine import tf_private
from tfx_tpu_trainer.engine.checking.nan_checks import StopAtNanHook
from tfx_tpu_trainer.engine.checking.train_op_check import check_train_op
from tfx_tpu_trainer.engine.checkpointing import checkpoints
from tfx_tpu_trainer.engine.checkpointing.checkpoint_damage import damage_explained
from tfx_tpu_trainer.engine.checkpointing.checkpoints import check_writable
from tfx_tpu_trainer.engine.checkpointing.input_position import InputPosition, log_not_saved
from tfx_tpu_trainer.engine.checkpointing.saver_hooks import FiniteSaverHook, choose_saver_hooks
from tfx_tpu_trainer.engine.checkpointing.savers import add_default_saver, fitted_scaffold
from tfx_tpu_trainer.engine.checkpointing.taken_values import log_taken_values
from tfx_tpu_trainer.engine.feeding.saved_iterators import SavedInput
from tfx_tpu_trainer.engine.loops.one_thread_loop import LoopReadyHook, build_one_thread_loop
from tfx_tpu_trainer.engine.loops.pace import allows_loops, needs_no_call, wants_each_step
from tfx_tpu_trainer.engine.loops.progress_hook import ProgressHook
from tfx_tpu_trainer.engine.loops.small_steps import is_small
from tfx_tpu_trainer.engine.loops.step_loop import HostLoop, build_host_loop
from tfx_tpu_trainer.engine.reporting.log_hooks import LossLogHook
from tfx_tpu_trainer.engine.reporting.profile_hook import ProfileHook
from tfx_tpu_trainer.engine.reporting.summary_hooks import (
    HostCallHook,
    SteadySummaryHook,
    SummaryHook,
)
from tfx_tpu_trainer.engine.sessions.closing import closed_aside
from tfx_tpu_trainer.engine.sessions.opening import (
    SessionCreatorFn,
    SessionSettings,
    folder_of,
    open_training_session,
)
from tfx_tpu_trainer.engine.sessions.patient_creator import hosts_of
from tfx_tpu_trainer.engine.sessions.patient_session import PatientSession
from tfx_tpu_trainer.engine.sessions.polite_stop import PoliteStop, listening
from tfx_tpu_trainer.engine.sessions.run_errors import run_errors_explained
from tfx_tpu_trainer.engine.sessions.session_configs import Optimizing
from tfx_tpu_trainer.engine.sessions.stall_watch import StallWatch
from tfx_tpu_trainer.engine.template import ModelTemplate
from tfx_tpu_trainer.engine.tracing import collecting_only_new_garbage
from tfx_tpu_trainer.engine.training.fast_forward import FastForwardHook
from tfx_tpu_trainer.engine.training.loop_choice import (
    LoopChoice,
    choose_loop,
    jit_compile_of,
    log_no_loops,
    runs_on_one_thread,
)
from tfx_tpu_trainer.free_memory import return_freed_memory
from tfx_tpu_trainer.progress import Progress

v1 = tf.compat.v1
_logger = tf.get_logger()

# The first call of a step, and of a loop.
_CALLS_THAT_BUILD = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """A training, placed and ready to run.

    Attributes:
        template: The model.
        train_op: What a session call runs: a step, or a loop of them.
        loss: Loss of the call's last step.
        stop_hook: Stops the session at the last step; `None` goes to the end of the input.
        steps_per_call: Steps of a session call, at most.
        make_loop: Returns a loop of steps that may run between the calls that hooks must see, from
            whether each op runs on one thread; `None` where every call must be seen.
        last_step_of: Returns the last step of a session that starts at a step; `None` where the
            end of the input ends it.
        session_creator: Makes the session's creator. Defaults to `ChiefSessionCreator`.
        saved_input: The input, where it is none of the session's graph. Defaults to `None`.
        end_loop: Ends a loop that is running after its current step; called in another thread.
            Defaults to `None`: calls are short, or can't be ended.
        agreed_stop: Hook by which several processes that make the same steps stop together: none
            of them may leave the others by itself. Defaults to `None`: there are no others.
        log_loss_every: Steps between log lines of loss and step, where the settings have no
            `log_step_count_steps`. Defaults to `None`, no lines.
        ran_on: Where it runs, in words. Defaults to "this host".
    """

    template: ModelTemplate
    train_op: Any
    loss: tf.Tensor
    stop_hook: v1.train.SessionRunHook | None
    steps_per_call: int = 1
    make_loop: Callable[[bool], HostLoop] | None = None
    last_step_of: Callable[[int], int | None] = lambda start: None
    session_creator: SessionCreatorFn = v1.train.ChiefSessionCreator
    saved_input: SavedInput | None = None
    end_loop: Callable[[], None] | None = None
    agreed_stop: v1.train.SessionRunHook | None = None
    log_loss_every: int | None = None
    ran_on: str = "this host"

    @functools.cached_property
    def has_small_steps(self) -> bool:
        """Whether a step is faster with each op on one thread."""
        return is_small(self.template)


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
        """Returns the hook that tells.

        Args:
            loss: Scalar tensor.
            is_resumed: Whether the session resumes from a checkpoint.
        """
        return ProgressHook(
            self.progress,
            loss,
            steps=self.steps,
            max_steps=self.max_steps,
            rows_per_step=self.rows_per_step,
            report_every=self.every_steps,
            is_resumed=is_resumed,
        )


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
        make_loop=lambda one_thread: (
            build_one_thread_loop(template) if one_thread else build_host_loop(template)
        ),
        last_step_of=last_step_of,
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
    jit_compile = jit_compile_of(settings.jit_compile, same_each_time=_same_each_time(settings))
    loop = _loop_of_all_steps(plan, hooks, settings, master, jit_compile)
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
    fast_forward = _fast_forward(plan, own_hooks, settings, master, jit_compile, loop)
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
    with damage_explained(checkpoint_path), collecting_only_new_garbage():
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
            optimizing=_optimizing(plan, loop, fast_forward),
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
    known = ("tensorflow.", "tfx_tpu_trainer.engine.")
    return all(
        type(hook).__module__.startswith(known) or not wants_each_step(hook) for hook in hooks
    )


def _may_loop(
    plan: TrainingPlan,
    hooks: Sequence[v1.train.SessionRunHook],
    settings: SessionSettings,
    master: str,
) -> bool:
    local = settings.is_chief and not master
    return plan.make_loop is not None and local and allows_loops(hooks)


def _loop_of_all_steps(
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
    if not _same_each_time(settings):
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


def _same_each_time(settings: SessionSettings) -> bool:
    """Tells whether a training was asked to make the same model each time."""
    seeded = v1.get_default_graph().seed is not None
    return settings.save_input_position or seeded or tf_private.is_op_determinism_enabled()


def _fast_forward(
    plan: TrainingPlan,
    hooks: Sequence[v1.train.SessionRunHook],
    settings: SessionSettings,
    master: str,
    jit_compile: bool | str | None,
    loop: HostLoop | None,
) -> FastForwardHook | None:
    """Returns what runs ahead between the steps that hooks must see, where nothing forbids it.

    Args:
        plan: What runs.
        hooks: All hooks.
        settings: Settings of the run.
        master: Address of the session's master.
        jit_compile: How steps are made fast; see `jit_compile_of`.
        loop: The loop that all steps are made in, if there is one.
    """
    if not _may_loop(plan, hooks, settings, master):
        if jit_compile:
            log_no_loops()
        return None
    make_new = plan.make_loop
    assert make_new is not None

    def make_loop() -> HostLoop | LoopChoice:
        if loop is not None:
            return loop
        # Steps that hooks see are made by themselves, on all threads.
        one_thread = not _same_each_time(settings) and runs_on_one_thread(
            plan.has_small_steps, jit_compile=jit_compile
        )
        return choose_loop(make_new(one_thread), plan.template, jit_compile=jit_compile)

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


def _optimizing(
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
