from __future__ import annotations

import pytest
import tensorflow as tf

from tests.estimator._engine.log_lines import log_lines
from tfx_tpu_trainer.estimator._engine.loops.loop_hook import (
    LoopHook,
    LoopLength,
    LoopLengthFromTime,
    TunedLoopLength,
)
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

v1 = tf.compat.v1


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
