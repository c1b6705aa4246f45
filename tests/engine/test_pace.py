from __future__ import annotations

import pytest
import tensorflow as tf

from tfx_tpu_trainer.engine.pace import Pace, allows_loops
from tfx_tpu_trainer.engine.throughput_hook import ThroughputHook

v1 = tf.compat.v1


@pytest.mark.parametrize(
    ("start", "periods", "last_step", "step", "ahead"),
    [
        # Due at 10 (from the start) and 11 (from the first step): 9 and 10 are run one by one.
        (0, (10,), None, 1, 7),
        (0, (10,), None, 7, 1),
        (0, (10,), None, 8, 0),
        # After 10 the hook that counts from the first step is due, at 11; then 20.
        (0, (10,), None, 10, 0),
        (0, (10,), None, 11, 7),
        # From step 3 on: 3 + 10 is the next.
        (3, (10,), None, 4, 7),
        # The shortest period decides, and the last step is seen.
        (0, (10, 100), None, 1, 7),
        (0, (100,), 50, 1, 47),
        (0, (), 50, 1, 47),
        (0, (), 50, 49, 0),
        # Nothing is ever due.
        (0, (), None, 1, None),
        # A hook that acts at every step leaves no room.
        (0, (1,), None, 5, 0),
    ],
)
def test_steps_ahead(start, periods, last_step, step, ahead):
    assert Pace(start, periods, last_step).steps_ahead(step) == ahead


@pytest.mark.parametrize("period", [3, 4, 7, 50])
@pytest.mark.parametrize("start", [0, 5])
def test_no_step_at_which_a_hook_acts_is_jumped_over_nor_the_one_before(start, period):
    pace, step, seen = Pace(start, (period,), start + 200), start + 1, {start + 1}
    while step < start + 200:
        step += pace.steps_ahead(step) + 1
        seen.add(step)
    acts = {s + k for k in range(0, 200, period) for s in (start, start + 1)} - {start}
    assert {s for s in acts if s <= start + 200} <= seen
    assert {s - 1 for s in acts if start + 2 < s <= start + 200} <= seen


class _Unknown(v1.train.SessionRunHook):
    pass


class _Modest(v1.train.SessionRunHook):
    loop_ends_are_enough = True


class _OwnStop(v1.train.StopAtStepHook):
    """May do anything in its after_run."""


def test_hooks_that_could_tell_forbid_loops():
    known = [
        v1.train.StopAtStepHook(last_step=3),
        ThroughputHook(every_n_steps=1, batch_size=None, output_dir=None),
        _Modest(),
    ]
    assert allows_loops(known)
    assert not allows_loops([*known, _Unknown()])
    assert not allows_loops([*known, _OwnStop(last_step=3)])
