from __future__ import annotations

import math

import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.loops.pace import LoopEndHook, Pace, allows_loops
from tfx_tpu_trainer.estimator._engine.reporting.log_hooks import ThroughputHook

v1 = tf.compat.v1


@pytest.mark.parametrize(
    ("pace", "step", "ahead"),
    [
        # Reports come at 1, 11, 21: the steps 2 to 10 need not be seen.
        (Pace(0, None, (10,), None), 1, 9),
        (Pace(0, None, (10,), None), 10, 0),
        (Pace(0, None, (10,), None), 11, 9),
        # Checkpoints come at 0, 10, 20.
        (Pace(0, 10, (), None), 1, 8),
        (Pace(0, 10, (), None), 10, 9),
        # A session that starts at 3 reports at 4, 14 and saves at 3, 13.
        (Pace(3, None, (10,), None), 4, 9),
        (Pace(3, 10, (10,), None), 4, 8),
        (Pace(3, 10, (10,), None), 13, 0),
        # What is due first decides, and the last step is seen.
        (Pace(0, 100, (10, 50), None), 1, 9),
        (Pace(0, 100, (), 50), 1, 48),
        (Pace(0, None, (), 50), 1, 48),
        (Pace(0, None, (), 50), 49, 0),
        # TensorFlow's timers take any number: 7.5 steps after 0 is 8, and 7.5 after that 16.
        (Pace(0, 7.5, (), None), 1, 6),
        (Pace(0, 7.5, (), None), 8, 7),
        (Pace(0, None, (7.5,), None), 1, 7),
        (Pace(0, None, (0.5,), None), 5, 0),
        (Pace(0, math.inf, (), 50), 1, 48),
        # Nothing is ever due.
        (Pace(0, None, (), None), 1, None),
        # A hook that acts at every step leaves no room.
        (Pace(0, None, (1,), None), 5, 0),
    ],
)
def test_steps_ahead(pace, step, ahead):
    assert pace.steps_ahead(step) == ahead


@pytest.mark.parametrize("period", [1, 3, 4, 7, 50])
@pytest.mark.parametrize("start", [0, 5])
def test_no_step_at_which_a_hook_acts_is_jumped_over(start, period):
    end = start + 200
    pace, step, seen = Pace(start, period + 1, (period,), end), start + 1, {start + 1}
    while step < end:
        step += pace.steps_ahead(step) + 1
        seen.add(step)
    saves = range(start + period + 1, end + 1, period + 1)
    reports = range(start + 1, end + 1, period)
    assert seen == {*saves, *reports, end}


class _Unknown(v1.train.SessionRunHook):
    def before_run(self, run_context):
        """May look at every step."""


class _AtTheEnds(v1.train.SessionRunHook):
    def after_create_session(self, session, coord):
        """Is called when no step is made."""

    def end(self, session):
        """The same."""


class _Modest(LoopEndHook):
    pass


def test_hooks_that_could_tell_forbid_loops():
    known = [
        ThroughputHook(every_n_steps=1, batch_size=None, output_dir=None),
        _Modest(),
    ]
    assert allows_loops(known)
    assert not allows_loops([*known, _Unknown()])
    # Only the hook knows its last step.
    assert not allows_loops([*known, v1.train.StopAtStepHook(last_step=3)])


def test_a_hook_that_no_step_calls_allows_loops():
    hook = _AtTheEnds()
    assert allows_loops([hook])
    hook.after_run = print
    assert not allows_loops([hook])
