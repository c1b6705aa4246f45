"""Files that change under a training whose rows are kept parsed."""

from __future__ import annotations

import logging
import math
import os

import pytest
import tensorflow as tf

from tests.components.inputs.counted_rows import NUMBERS, counted_input, write_rows
from tests.estimator import counting_model
from tfx_tpu_trainer.components.inputs import RowCache, train_on_current_rows

v1 = tf.compat.v1

PARSED_ANEW = "changed after their 12 rows were parsed; parsing them again"


class _AtStep(v1.train.SessionRunHook):
    """Does something once, when a step has been made."""

    def __init__(self, step, work):
        self._step, self._work = step, work

    def after_run(self, run_context, run_values):
        if self._work and run_context.session.run(v1.train.get_global_step()) >= self._step:
            self._work()
            self._work = None


def _train(folder, change, *, steps):
    """Trains on 12 rows, 4 a step, and changes their files in the middle of the first epoch."""
    cache = RowCache(rows_to_draw=None)
    source = counted_input(folder, 12, cache=cache, names=NUMBERS)
    sessions = []
    hook = _AtStep(2, lambda: change(folder))

    def train(hooks):
        sessions.append(hooks)
        made = counting_model.estimator(folder / "model")
        made.train(source.train_fn(), hooks=[hook, *hooks], max_steps=steps)

    train_on_current_rows(train, cache, batch_size=4, time_share=math.inf)
    cache.release()
    trained = counting_model.estimator(folder / "model")
    assert trained.get_variable_value("global_step") == steps
    counts = trained.get_variable_value("counts")
    assert counts.sum() == pytest.approx(4 * steps)
    return counts, len(sessions)


def test_rows_that_are_added_are_seen_from_the_next_epoch_on(tmp_path, caplog):
    counts, sessions = _train(
        tmp_path, lambda folder: write_rows(folder / "rows-3", range(12, 24)), steps=16
    )
    assert caplog.text.count(PARSED_ANEW) == 1 and sessions == 2
    # Three or four steps with 12 rows, then two epochs of 24 and a step at most.
    assert {*counts[12:].tolist()} <= {2.0, 3.0}


def test_a_file_that_is_written_anew_is_parsed_anew(tmp_path, caplog):
    counts, sessions = _train(
        tmp_path, lambda folder: write_rows(folder / "rows-0", range(20, 24)), steps=30
    )
    assert caplog.text.count(PARSED_ANEW) == 1 and sessions == 2
    former, later = counts[0:12:3], counts[20:]
    assert [counts[n] for n in range(12) if n % 3] == pytest.approx([10.0] * 8)
    # What took the place of a row has its turn; batches that were drawn before the change are still trained on.
    assert (former + later).tolist() == pytest.approx([10.0] * 4)
    assert former.max() <= 4.0


def test_files_that_are_gone_for_a_moment_change_nothing(tmp_path, caplog):
    def remove(folder):
        for name in ("rows-0", "rows-1", "rows-2"):
            os.remove(folder / name)

    counts, sessions = _train(tmp_path, remove, steps=12)
    assert sessions == 1 and "parsing them again" not in caplog.text
    assert counts[:12].tolist() == pytest.approx([4.0] * 12)


def test_files_that_stay_are_trained_on_in_one_session(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        counts, sessions = _train(tmp_path, lambda folder: None, steps=12)
    assert sessions == 1 and caplog.text.count("Parsed the training input in") == 1
    assert counts[:12].tolist() == pytest.approx([4.0] * 12)


def test_without_kept_rows_there_is_one_session_and_no_hook():
    given = []
    train_on_current_rows(given.append, None, batch_size=4)
    assert given == [[]]
