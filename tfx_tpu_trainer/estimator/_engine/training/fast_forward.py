"""Runs training ahead to the next step that a hook must see."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.checking.nan_checks import NanLossError
from tfx_tpu_trainer.estimator._engine.checkpointing import checkpoints
from tfx_tpu_trainer.estimator._engine.checkpointing.graph_files import left_out_of_meta_graphs
from tfx_tpu_trainer.estimator._engine.loops.loop_hook import TunedLoopLength
from tfx_tpu_trainer.estimator._engine.loops.pace import Pace
from tfx_tpu_trainer.estimator._engine.loops.step_loop import HostLoop
from tfx_tpu_trainer.estimator._engine.training.loop_choice import LoopChoice

v1 = tf.compat.v1

# What is due by time, such as a checkpoint every ten minutes, must not wait for long.
_LONGEST_SECONDS = 1.0

# Beside so many steps in a loop, it does not matter how long the one by itself takes.
_LONG_LOOP = 10


class Reporter(Protocol):
    """A hook that needs not see a step to report it."""

    every_n_steps: int | None

    def reached(self, step: int, loss: Any) -> None:
        """Is told of the global step that a loop has reached, and of its loss."""


class FastForwardHook(v1.train.SessionRunHook):
    """Knows where a session stands, and runs it ahead between the calls that hooks see."""

    def __init__(
        self,
        make_loop: Callable[[], HostLoop | LoopChoice],
        train_op: Any,
        *,
        reporters: Sequence[Reporter],
        save_steps: float | None,
        report_steps: tuple[float, ...],
        last_step_of: Callable[[int], int | None],
        model_dir: str,
        watched_steps: tuple[int, int] | None = None,
    ) -> None:
        self._make_loop = make_loop
        self._loop: HostLoop | LoopChoice | None = None
        with tf.control_dependencies([train_op]):
            self.step_after = v1.train.get_global_step().read_value()
        self._reporters = reporters
        self._save_steps = save_steps
        self._report_steps = report_steps
        self._last_step_of = last_step_of
        self._model_dir = model_dir
        self._watched_steps = watched_steps
        self._length = TunedLoopLength(_LONGEST_SECONDS)
        # What one step adds to the global step: two where one optimizer trains both halves of a model.
        self._counted = 1

    @property
    def step(self) -> int:
        """Global step reached."""
        return self._step

    @property
    def has_long_loops(self) -> bool:
        """Whether few of the steps are made by themselves."""
        periods = [steps for steps in (*self._report_steps, self._save_steps) if steps]
        return min(periods, default=_LONG_LOOP) >= _LONG_LOOP

    def begin(self) -> None:
        """Finds the global step."""
        self._global_step = tf_private.read_global_step()

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Finds the step that the session starts at."""
        del coord
        self._step = int(session.run(self._global_step))
        if self._loop is not None:
            self._loop.prepare(session)
        self._pace = Pace(
            self._step,
            self._save_steps,
            self._report_steps,
            self._last_step_of(self._step),
            self._watched_steps,
        )

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs:
        """Asks for the step that the call reaches."""
        del run_context
        return v1.train.SessionRunArgs(self.step_after)

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Finds the step that a call has reached."""
        del run_context
        reached = int(run_values.results)
        self._counted = max(self._counted, reached - self._step)
        self._step = reached

    def run_ahead(self, step_context: v1.train.MonitoredSession.StepContext) -> None:
        """Runs the steps that no hook need see; to be given to `run_step_fn`."""
        ahead = self._pace.steps_ahead(self._step)
        if ahead == 0:
            return
        loop = self._prepared_loop(step_context.session)
        longest = self._length()
        last = self._step + (longest if ahead is None else min(ahead, longest))
        while steps := min(self._steps_within(last), self._steps_within(self._next_report()) or 1):
            self._run(loop, step_context.session, steps)

    def _steps_within(self, last: int) -> int:
        """Returns how many steps can be made that go no further than a global step."""
        return max(last - self._step, 0) // self._counted

    def _prepared_loop(self, session: v1.Session) -> HostLoop | LoopChoice:
        if self._loop is None:
            graph = session.graph
            with tf_private.growing(graph), left_out_of_meta_graphs(graph):
                self._loop = self._make_loop()
            self._loop.prepare(session)
        return self._loop

    def _run(self, loop: HostLoop | LoopChoice, session: v1.Session, steps: int) -> None:
        started = time.monotonic()
        loss, step = loop.run(session, steps)
        self._length.report(seconds=time.monotonic() - started, steps=step - self._step)
        self._step = step
        if np.isnan(loss):
            raise NanLossError(step=step, checkpoint=checkpoints.latest_checkpoint(self._model_dir))
        for reporter in self._reporters:
            reporter.reached(step, loss)

    def _next_report(self) -> int:
        """Returns the next step at which a reporter reports."""
        periods = [reporter.every_n_steps for reporter in self._reporters]
        return min(
            (self._pace.next_report(self._step, period) for period in periods if period),
            default=sys.maxsize,
        )
