"""Chooses a training's loops, measures which of two is faster, and runs them ahead between hooks."""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.checkpointing import checkpoints
from tfx_tpu_trainer.estimator._engine.checkpointing.savers import left_out_of_meta_graphs
from tfx_tpu_trainer.estimator._engine.graph_optimizer import sees_gpus
from tfx_tpu_trainer.estimator._engine.loops.compiled_loop import (
    CannotCompileError,
    CompiledLoop,
    build_compiled_loop,
)
from tfx_tpu_trainer.estimator._engine.loops.step_loop import TemplateLoop
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import (
    StepsPerCall,
    TunedLoopLength,
    allows_loops,
    needs_no_call,
)
from tfx_tpu_trainer.estimator._engine.nan_checks import NanLossError
from tfx_tpu_trainer.estimator._engine.reporting.summaries import HostCallHook
from tfx_tpu_trainer.estimator._engine.sessions.lifecycle import Optimizing
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate, SessionSettings, folder_of
from tfx_tpu_trainer.estimator._engine.training.training_plan import TrainingPlan

v1 = tf.compat.v1
_logger = tf.get_logger()

# The first trial of each loop is a single call and does not count, since it builds what later ones use. The others last
# for some time: a call may be as short as 10 ms if events are written often, and other programs' work would decide.
_TRIALS = 4
_TRIAL_SECONDS = 0.1

# Compiling for longer would cost more than it saves.
_COMPILE_SECONDS = 60.0


class LoopChoice:
    """Runs the plain loop or the compiled one: the configured one, or whichever is faster."""

    def __init__(
        self,
        plain: TemplateLoop,
        compiled: CompiledLoop,
        *,
        jit_compile: Literal[True, "auto"],
        asked: bool = True,
        clock: Callable[[], float] = time.perf_counter,
        compile_seconds: float = _COMPILE_SECONDS,
    ) -> None:
        self._plain = plain
        self._compiled = compiled
        self._jit_compile = jit_compile
        self._asked = asked
        self._clock = clock
        self._compile_seconds = compile_seconds
        self._chosen: TemplateLoop | CompiledLoop | None = None
        self._plain_seconds: list[float] = []
        self._compiled_seconds: list[float] = []
        self._trial_steps = 0
        self._trial_seconds = 0.0

    def prepare(self, session: v1.Session) -> None:
        """Compiles; falls back to the plain loop, with a log line."""
        self._plain.prepare(session)
        if self._chosen is self._plain:
            return
        try:
            within = None if self._jit_compile is True else self._compile_seconds
            self._compiled.compile(session, within=within)
        except CannotCompileError as error:
            _log_fallback(error, asked=self._asked)
            self._chosen = self._plain
        else:
            if self._jit_compile is True:
                self._chosen = self._compiled

    def run(self, session: v1.Session, steps: int) -> tuple[np.ndarray, int]:
        """Runs some steps, or fewer while it measures; see `TemplateLoop.run`."""
        # The two take turns: plain, compiled, plain, ... The plain loop's last time limits a trial, even the first of
        # the compiled loop, whose speed is unknown. All steps count.
        if self._chosen is not None:
            return self._chosen.run(session, steps)
        plain, compiled = self._plain_seconds, self._compiled_seconds
        plains_turn = len(plain) == len(compiled)
        if plain:
            steps = max(1, min(steps, int(_TRIAL_SECONDS / plain[-1])))
        started = self._clock()
        result = (self._plain if plains_turn else self._compiled).run(session, steps)
        self._trial_steps += steps
        self._trial_seconds += self._clock() - started
        times = plain if plains_turn else compiled
        if times and self._trial_seconds < _TRIAL_SECONDS:
            return result
        times.append(self._trial_seconds / self._trial_steps)
        self._trial_steps, self._trial_seconds = 0, 0.0
        if len(compiled) == _TRIALS:
            self._choose(statistics.median(plain[1:]), statistics.median(compiled[1:]))
        return result

    def _choose(self, plain: float, compiled: float) -> None:
        self._chosen = self._compiled if compiled < plain else self._plain
        _logger.info(
            "jit_compile=%s: a step takes %.3f ms in the loop that XLA compiled and %.3f ms "
            "in the loop of single ops; continuing with the %s.",
            "'auto'" if self._asked else "None, which is 'auto' on a GPU",
            compiled * 1000,
            plain * 1000,
            "compiled loop" if self._chosen is self._compiled else "loop of single ops",
        )


def runs_on_one_thread(has_small_steps: bool, *, jit_compile: bool | str | None) -> bool:
    """Returns whether a model's loop runs each op on one thread, and logs it."""
    one_thread = jit_compile is not False and has_small_steps
    if one_thread and jit_compile is None:
        _logger.info(
            "The steps of this model are small: in loops each op runs on one thread, which takes "
            "less time than sharing it among several. RunConfig(jit_compile=False) shares it."
        )
    return one_thread


def choose_loop(
    plain: TemplateLoop, template: ModelTemplate, *, jit_compile: Any, asked: bool = True
) -> TemplateLoop | LoopChoice:
    """Returns the loop for a setting of `jit_compile`."""
    if not jit_compile:
        return plain
    try:
        compiled = build_compiled_loop(template)
    except CannotCompileError as error:
        _log_fallback(error, asked=asked)
        return plain
    return LoopChoice(plain, compiled, jit_compile=jit_compile, asked=asked)


def jit_compile_of(setting: bool | str | None, *, same_each_time: bool) -> bool | str | None:
    """Returns the setting of `jit_compile` with which a training runs."""
    if setting is None and not same_each_time and sees_gpus():
        return "auto"
    if setting != "auto" or not same_each_time:
        return setting
    _logger.info(
        "jit_compile='auto' measures nothing, because this training is to make the same model each "
        "time (it has a seed, deterministic ops or save_input_position): the graph chooses the "
        "loop, as without jit_compile. jit_compile=True compiles."
    )
    return None


def log_no_loops() -> None:
    """Logs that there is nothing to compile."""
    _logger.warning(
        "jit_compile has no effect: it compiles loops of steps, but these steps run one by one or "
        "on cores. On the host (use_tpu=False, without a cluster) steps run in loops unless a "
        "hook needs to see each of them."
    )


def _log_fallback(error: CannotCompileError, *, asked: bool) -> None:
    if asked:
        _logger.warning("jit_compile is ignored, because XLA can't compile the steps: %s.", error)
    else:
        _logger.info("The steps run op by op, because XLA can't compile them: %s.", error)


# The most seconds that hooks due by time, such as a checkpoint every ten minutes, wait for a loop.
_LONGEST_SECONDS = 1.0

# In a loop of this many steps, the time of the one step by itself does not matter.
_LONG_LOOP = 10


class Reporter(Protocol):
    """A hook that can report a step without being called in it."""

    every_n_steps: int | None

    def reached(self, step: int, loss: Any) -> None:
        """Receives the global step that a loop has reached, and its loss."""


# How steps run ahead of hooks. The problem: a session call with its hooks takes longer than a small
# model's step, and hooks are called with each step. The idea: known hooks act only at known steps.
# So before each call of the training, `run_ahead` runs the steps up to the next of these, in a loop
# of the graph. With a log line each 100 steps:
#   call: step 1 | loop: 2 to 100 | call: step 101 | loop: 102 to 200 | ...
# The invariants: hooks act at the steps at which they would if each step were a call; the loop and
# the template's own train_op use the same variables and the same iterator, so they can take
# turns at any step; and no loop goes past the last step, a checkpoint, or about a second.
class FastForwardHook(v1.train.SessionRunHook):
    """Follows the global step, and runs steps ahead between the calls that hooks see."""

    def __init__(
        self,
        make_loop: Callable[[], TemplateLoop | LoopChoice],
        plan: TrainingPlan,
        settings: SessionSettings,
        *,
        reporters: Sequence[Reporter],
        awaited_steps: int | None = None,
    ) -> None:
        self._make_loop = make_loop
        self._plan = plan
        self._settings = settings
        self._reporters = reporters
        self._loop: TemplateLoop | LoopChoice | None = None
        with tf.control_dependencies([plan.train_op]):
            self.step_after = v1.train.get_global_step().read_value()
        self._save_steps = settings.save_checkpoints_steps or None
        reports = (settings.save_summary_steps, settings.log_step_count_steps)
        self._report_steps = tuple(steps for steps in reports if steps)
        self._awaited_steps = awaited_steps
        self._length = TunedLoopLength(_LONGEST_SECONDS)
        # How much a step adds to the global step: 2 if an optimizer trains both halves of a model and counts each.
        self._counted = 1

    @property
    def step(self) -> int:
        """Global step reached."""
        return self._step

    @property
    def has_long_loops(self) -> bool:
        """Whether only few of the steps run by themselves."""
        acts = (*self._report_steps, self._save_steps, self._awaited_steps)
        periods = [steps for steps in acts if steps]
        return min(periods, default=_LONG_LOOP) >= _LONG_LOOP

    def begin(self) -> None:
        self._global_step = tf_private.read_global_step()

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Finds the step that the session starts at."""
        self._step = int(session.run(self._global_step))
        if self._loop is not None:
            self._loop.prepare(session)
        self._pace = StepsPerCall(
            self._step,
            self._save_steps,
            self._report_steps,
            self._plan.last_step_of(self._step),
            self._settings.profile_steps,
            self._awaited_steps,
        )

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs:
        return v1.train.SessionRunArgs(self.step_after)

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        reached = int(run_values.results)
        self._counted = max(self._counted, reached - self._step)
        self._step = reached

    def run_ahead(self, step_context: v1.train.MonitoredSession.StepContext) -> None:
        """Runs the steps up to the next that a hook must see; an argument for `run_step_fn`."""
        ahead = self._pace.steps_ahead(self._step)
        if ahead == 0:
            return
        loop = self._prepared_loop(step_context.session)
        longest = self._length()
        last = self._step + (longest if ahead is None else min(ahead, longest))
        # A loop ends at each report on the way. If a step counts two and the report is one away (`or 1`), the step runs
        # nevertheless, and the report comes a step late.
        while steps := min(self._steps_within(last), self._steps_within(self._next_report()) or 1):
            self._run(loop, step_context.session, steps)

    def _steps_within(self, last: int) -> int:
        """Returns how many steps can run without going past a global step."""
        return max(last - self._step, 0) // self._counted

    def _prepared_loop(self, session: v1.Session) -> TemplateLoop | LoopChoice:
        if self._loop is None:
            graph = session.graph
            with tf_private.growing(graph), left_out_of_meta_graphs(graph):
                self._loop = self._make_loop()
            self._loop.prepare(session)
        return self._loop

    def _run(self, loop: TemplateLoop | LoopChoice, session: v1.Session, steps: int) -> None:
        started = time.monotonic()
        loss, step = loop.run(session, steps)
        self._length.report(seconds=time.monotonic() - started, steps=step - self._step)
        self._step = step
        if np.isnan(loss):
            raise NanLossError(
                step=step, checkpoint=checkpoints.latest_checkpoint(folder_of(self._settings))
            )
        for reporter in self._reporters:
            reporter.reached(step, loss)

    def _next_report(self) -> int:
        """Returns the next step at which a reporter reports."""
        periods = [reporter.every_n_steps for reporter in self._reporters]
        return min(
            (self._pace.next_report(self._step, period) for period in periods if period),
            default=sys.maxsize,
        )


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
) -> TemplateLoop | None:
    """Returns a loop for all steps, if the same bits are needed each time."""
    # A step in a loop and a step by itself may differ in the last bit, and the clock and a session's start decide which
    # steps run by themselves. Not possible if more than the loss is fetched from a step.
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
    """Returns whether a training must make the same model each time."""
    seeded = v1.get_default_graph().seed is not None
    return settings.save_input_position or seeded or tf_private.is_op_determinism_enabled()


def fast_forward_of(
    plan: TrainingPlan,
    hooks: Sequence[v1.train.SessionRunHook],
    settings: SessionSettings,
    master: str,
    jit_compile: bool | str | None,
    loop: TemplateLoop | None,
    awaited_steps: int | None,
) -> FastForwardHook | None:
    """Returns the hook that runs steps ahead, if all hooks allow it."""
    asked = settings.jit_compile is not None
    if not _may_loop(plan, hooks, settings, master):
        if asked and jit_compile:
            log_no_loops()
        return None
    make_new = plan.make_loop
    assert make_new is not None

    def make_loop() -> TemplateLoop | LoopChoice:
        if loop is not None:
            return loop
        # Steps that hooks see run by themselves, on all threads.
        one_thread = not same_each_time(settings) and runs_on_one_thread(
            plan.has_small_steps, jit_compile=jit_compile
        )
        plain = make_new(one_thread)
        return choose_loop(plain, plan.template, jit_compile=jit_compile, asked=asked)

    reporters = [hook for hook in hooks if needs_no_call(hook)]
    return FastForwardHook(
        make_loop, plan, settings, reporters=reporters, awaited_steps=awaited_steps
    )


def optimizing_of(
    plan: TrainingPlan, loop: TemplateLoop | None, fast_forward: FastForwardHook | None
) -> Optimizing:
    """Returns how much of the graph to optimize; more would delay the first step more than it saves."""
    if plan.make_loop is None or loop is not None:
        return Optimizing.NOTHING
    if fast_forward is None:
        return Optimizing.DEPENDENCIES if plan.has_small_steps else Optimizing.CONFIGURED
    if fast_forward.has_long_loops and plan.has_small_steps:
        return Optimizing.NOTHING
    return Optimizing.DEPENDENCIES
