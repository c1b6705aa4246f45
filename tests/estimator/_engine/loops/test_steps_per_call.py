import math

import pytest
import tensorflow as tf

from tests.estimator._engine.log_lines import log_lines
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import (
    LoopEndHook,
    LoopHook,
    LoopLength,
    LoopLengthFromTime,
    StepsPerCall,
    TunedLoopLength,
    allows_loops,
)
from tfx_tpu_trainer.estimator._engine.reporting.log_hooks import ThroughputHook
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

v1 = tf.compat.v1


@pytest.mark.parametrize(
    ("pace", "step", "ahead"),
    [
        # Reports come at 1, 11, 21: the steps 2 to 10 need not be seen.
        (StepsPerCall(0, None, (10,), None), 1, 9),
        (StepsPerCall(0, None, (10,), None), 10, 0),
        (StepsPerCall(0, None, (10,), None), 11, 9),
        # Checkpoints come at 0, 10, 20.
        (StepsPerCall(0, 10, (), None), 1, 8),
        (StepsPerCall(0, 10, (), None), 10, 9),
        # A session that starts at 3 reports at 4, 14 and saves at 3, 13.
        (StepsPerCall(3, None, (10,), None), 4, 9),
        (StepsPerCall(3, 10, (10,), None), 4, 8),
        (StepsPerCall(3, 10, (10,), None), 13, 0),
        # What is due first decides, and the last step is seen.
        (StepsPerCall(0, 100, (10, 50), None), 1, 9),
        (StepsPerCall(0, 100, (), 50), 1, 48),
        (StepsPerCall(0, None, (), 50), 1, 48),
        (StepsPerCall(0, None, (), 50), 49, 0),
        # TensorFlow's timers take any number: 7.5 steps after 0 is 8, and 7.5 after that 16.
        (StepsPerCall(0, 7.5, (), None), 1, 6),
        (StepsPerCall(0, 7.5, (), None), 8, 7),
        (StepsPerCall(0, None, (7.5,), None), 1, 7),
        (StepsPerCall(0, None, (0.5,), None), 5, 0),
        (StepsPerCall(0, math.inf, (), 50), 1, 48),
        # Evaluations come at 100, 200, ..., wherever the session starts.
        (StepsPerCall(130, None, (), None, awaited_steps=100), 131, 68),
        # Nothing is ever due.
        (StepsPerCall(0, None, (), None), 1, None),
        # A hook that acts at every step leaves no room.
        (StepsPerCall(0, None, (1,), None), 5, 0),
    ],
)
def test_steps_ahead(pace, step, ahead):
    assert pace.steps_ahead(step) == ahead


@pytest.mark.parametrize("period", [1, 3, 4, 7, 50])
@pytest.mark.parametrize("start", [0, 5])
def test_no_step_at_which_a_hook_acts_is_jumped_over(start, period):
    end = start + 200
    pace, step, seen = StepsPerCall(start, period + 1, (period,), end), start + 1, {start + 1}
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


def _lengths(
    length, *, start=0, steps=None, max_steps=None, clock=None, input_steps=None, periods=()
):
    """The loop lengths that a hook chooses for a loop that only counts."""
    lengths = []
    with fresh_graph():
        step = v1.train.get_global_step()
        iterations = v1.get_variable(
            "iterations", initializer=1, collections=[v1.GraphKeys.LOCAL_VARIABLES], trainable=False
        )
        loop = step.assign_add(tf.cast(iterations.read_value(), tf.int64), read_value=False)
        jump = step.assign(start, read_value=False)
        read = iterations.read_value()

        def length_now(step_context):
            return step_context.session.run(read)

        hook = LoopHook(
            iterations,
            length=length,
            steps=steps,
            max_steps=max_steps,
            ends_at_multiples_of=periods,
            **({} if clock is None else {"clock": clock}),
        )
        scaffold = v1.train.Scaffold(init_op=tf.group(v1.global_variables_initializer()))
        scaffold = v1.train.Scaffold(
            init_fn=lambda _, session: session.run(jump), copy_from_scaffold=scaffold
        )
        creator = v1.train.ChiefSessionCreator(scaffold)
        with v1.train.MonitoredSession(creator, hooks=[hook]) as session:
            while not session.should_stop():
                lengths.append(int(session.run_step_fn(length_now)))
                session.run(loop)
                if input_steps is not None and sum(lengths) >= input_steps:
                    break
    return lengths


@pytest.mark.parametrize(
    ("options", "lengths"),
    [
        ({"steps": 10}, [4, 4, 2]),
        ({"steps": 10, "start": 3}, [4, 4, 2]),
        ({"max_steps": 10, "start": 3}, [4, 3]),
        ({"steps": 3}, [3]),
        ({"steps": 8}, [4, 4]),
        ({"max_steps": 1}, [1]),
    ],
)
@pytest.mark.behaviour(164, 165, 166, 167)
def test_the_last_loop_is_cut(options, lengths):
    assert _lengths(LoopLength(4), **options) == lengths


@pytest.mark.behaviour(169)
def test_loops_of_a_time_follow_the_mean_step():
    length = LoopLengthFromTime(2)
    assert length() == 1
    length.report(seconds=0.1, steps=1)
    assert length() == 20
    length.report(seconds=6.0, steps=20)
    assert length() == 10
    for _ in range(20):
        length.report(seconds=0.5, steps=1)
    assert length() == 4
    standing_still = lambda: 0.0  # noqa: E731
    assert _lengths(LoopLengthFromTime(2), steps=3, clock=standing_still) == [1, 1, 1]


@pytest.mark.behaviour(169)
def test_a_loop_has_at_least_one_step():
    length = LoopLengthFromTime(1)
    length.report(seconds=30, steps=1)
    assert length() == 1


@pytest.mark.behaviour(170)
def test_samples_that_are_not_positive_are_ignored():
    length = LoopLengthFromTime(2)
    for seconds, steps in [(0, 5), (-1, 5), (1, 0), (1, -2)]:
        length.report(seconds=seconds, steps=steps)
    assert length() == 1


@pytest.mark.parametrize("target", [0, -1.5])
@pytest.mark.behaviour(170)
def test_a_target_that_is_not_positive_is_refused(target):
    with pytest.raises(ValueError, match=f"Invalid target time {target}"):
        LoopLengthFromTime(target)


def test_no_loop_runs_past_what_is_due():
    assert _lengths(LoopLength(4), steps=14, start=1, periods=(5, 12)) == [4, 4, 1, 2, 3]
    assert _lengths(LoopLength(100), max_steps=10, periods=(3,)) == [3, 3, 3, 1]


def test_tuned_loops_grow_to_a_second_and_follow_the_speed():
    length = TunedLoopLength()
    lengths = []
    for _ in range(6):
        lengths.append(length())
        length.report(seconds=0.01 * lengths[-1], steps=lengths[-1])
    assert lengths == [1, 4, 16, 64, 100, 100]
    length.report(seconds=8.0, steps=100)
    assert length() == 12
    length.report(seconds=30.0, steps=1)
    assert length() == 1
    length.report(seconds=0.0, steps=12)
    assert length() == 1


def test_training_that_ends_early_says_so(caplog):
    with log_lines(caplog) as logged:
        _lengths(LoopLength(4), steps=10, input_steps=4)
    assert any("Training ended at global step 4, before step 10" in line for line in logged)
    caplog.clear()
    with log_lines(caplog) as logged:
        _lengths(LoopLength(4), steps=4)
    assert not any("Training ended" in line for line in logged)
