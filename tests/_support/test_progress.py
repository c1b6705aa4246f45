"""Tests the state of a run, and when its views are updated."""

import functools
import json

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tests.estimator._engine.log_lines import log_lines
from tests.estimator.tpu import on_cores
from tfx_tpu_trainer._support import progress_views
from tfx_tpu_trainer._support.progress import (
    Batches,
    Expected,
    Progress,
    Steps,
    current,
    duration,
    expecting,
    followed,
    phase,
    unfollowed,
)
from tfx_tpu_trainer._support.progress_views import (
    LINE_SECONDS,
    STATUS_VARIABLE,
    LogView,
    StatusFile,
    read_status,
)
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator._engine.loops.progress_hook import ProgressHook, Reporting
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import allows_loops, needs_no_call
from tfx_tpu_trainer.estimator.schedule._local import EvaluateAfterSaving


class _Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def _logged(clock, **options):
    """A progress that is logged, and its lines."""
    lines = []
    return Progress([LogView(lines.append, clock=clock)], clock=clock, **options), lines


def _train(progress, clock, *, seconds, steps, every, first=0, last=None):
    """Trains at an even speed, a report every step; the loss is that of the step."""
    progress.trains(last=last, rows_per_step=32, report_every=every)
    for step in range(first + 1, first + steps + 1):
        clock.now += seconds / steps
        if progress.is_due():
            progress.trained(step, 1 / step)


def test_all_that_is_known_of_a_training_is_in_one_line():
    steps = Steps(
        reached=500,
        last=5000,
        loss=0.22314,
        per_second=320.4,
        rows_per_step=64,
        checkpoint=400,
        next_evaluation="at step 1,000",
    )
    assert str(steps) == (
        "step 500 of 5,000 (10 %), loss 0.2231, 320 steps/s, 20,506 examples/s, 14 s left, "
        "checkpoint at step 400, next evaluation at step 1,000"
    )


def test_what_nobody_knows_is_left_out():
    assert str(Steps(reached=7)) == "step 7"
    assert str(Batches(done=1)) == "1 batch"
    assert str(Batches(done=37, total=100, rows=2368, per_second=9)) == (
        "37 of 100 batches, 2,368 rows, 7 s left"
    )


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.4, "59 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_durations_in_words(seconds, words):
    assert duration(seconds) == words


def test_a_fast_training_has_a_line_every_few_seconds_and_a_slow_one_every_so_many_steps():
    clock = _Clock()
    progress, lines = _logged(clock)
    with progress.phase("train"):
        _train(progress, clock, seconds=21, steps=21_000, every=100, last=30_000)
    # The first look sets the speed's first mark.
    assert len(lines) == int(21 / LINE_SECONDS)
    assert (
        lines[0].startswith("train: step 5,0")
        and ", 1,000 steps/s, 32,000 examples/s, 25 s left" in lines[0]
    )
    lines.clear()
    with progress.phase("train"):
        _train(progress, clock, seconds=200, steps=200, every=20)
    assert [int(line.split()[2].rstrip(",")) for line in lines] == list(range(21, 200, 20))


def test_a_very_slow_training_has_a_line_every_minute():
    clock = _Clock()
    progress, lines = _logged(clock)
    with progress.phase("train"):
        _train(progress, clock, seconds=630, steps=63, every=100)
    assert [int(line.split()[2].rstrip(",")) for line in lines] == list(range(7, 63, 6))


def test_the_speed_leaves_out_an_evaluation_while_the_training_waits_and_so_do_its_seconds():
    clock = _Clock()
    progress, lines = _logged(clock)
    with progress.phase("train"):
        _train(progress, clock, seconds=10, steps=1000, every=100)
        with progress.phase("evaluate"):
            clock.now += 300
        _train(progress, clock, seconds=10, steps=1000, every=100, first=1000)
    assert all("100 steps/s" in line for line in lines)
    assert progress.seconds == {"train": pytest.approx(20), "evaluate": 300}


def test_a_breakdown_adds_up_to_all_the_time_until_now():
    clock = _Clock()
    progress = Progress(clock=clock)
    clock.now += 2
    with progress.phase("train"):
        clock.now += 20
        with progress.phase("evaluate"):
            clock.now += 300
            assert progress.breakdown() == {"train": 20, "evaluate": 300, "rest": 2}
            clock.now += 4
    assert progress.breakdown() == {"train": 20, "evaluate": 304, "rest": 2}


def test_the_end_says_the_last_step_where_it_ran_and_the_seconds_of_each_phase():
    clock = _Clock()
    progress, lines = _logged(clock)
    with progress.phase("trace"):
        clock.now += 0.75
    with progress.phase("train"):
        progress.place("4 emulated TPU cores")
        progress.trains(last=10)
        progress.trained(1, 2.0)
        clock.now += 3
        progress.saved(10)
        progress.trained(10, 0.5, has_ended=True)
    progress.close()
    assert lines == [
        "train: step 10 of 10 (100 %), loss 0.5, 3 steps/s, checkpoint at step 10",
        "Ran on 4 emulated TPU cores: trace 0.8 s, train 3.0 s.",
    ]


def test_who_makes_parts_of_a_training_says_its_last_step_and_the_next_evaluation():
    clock = _Clock()
    expected = Expected(last_step=400, next_evaluation=lambda: "at step 200")
    progress, lines = _logged(clock, expected=lambda: expected)
    with progress.phase("train"):
        _train(progress, clock, seconds=6, steps=100, every=1, last=200)
    (line,) = lines
    assert " of 400 (" in line and line.endswith("next evaluation at step 200")


def test_nobody_watching_is_never_due():
    progress = Progress()
    with progress.phase("train"):
        assert not progress.is_due()


def test_a_block_within_another_ones_is_part_of_it(caplog):
    with log_lines(caplog) as logged:
        with followed("log") as outer, phase("export"):
            with followed("bar") as inner:
                assert inner is outer is current()
            with unfollowed("log").phase("predict"):
                pass
        assert current() is None
    assert logged == ["Phase: export"]


def test_what_is_expected_holds_for_its_block_only():
    with expecting(last_step=7), followed("off") as progress:
        assert progress._expected().last_step == 7
    assert Expected() == Expected(last_step=None, next_evaluation=Expected().next_evaluation)
    with followed("off") as progress:
        assert progress._expected().last_step is None


def test_the_status_file_says_the_phase_and_is_gone_at_the_end(tmp_path, monkeypatch):
    path = tmp_path / "status.json"
    monkeypatch.setenv(STATUS_VARIABLE, str(path))
    with followed("log") as progress:
        with progress.phase("train"):
            assert read_status(path) == "train"
            progress.trains(last=10)
            progress.trained(5, 0.25)
            assert read_status(path) == "train: step 5 of 10 (50 %), loss 0.25"
        with progress.phase("export"):
            assert read_status(path) == "export"
    assert list(tmp_path.iterdir()) == []


def test_a_status_file_that_cannot_be_written_ends_nothing(tmp_path):
    view = StatusFile(str(tmp_path / "missing" / "status.json"))
    view.began("train", is_told=True)
    view.shown("train", Steps(reached=1))
    view.close()
    (tmp_path / "status.json").write_text(json.dumps(["train"]))
    assert read_status(tmp_path / "status.json") is None
    assert read_status(tmp_path / "missing") is None


# What estimators tell of their trainings, evaluations and predictions, wherever these run.

v1 = tf.compat.v1

BATCH = 8


def _on_host(folder, **config):
    return tpu.TPUEstimator(
        linear_model.model_fn_for(tpu),
        config=tpu.RunConfig(model_dir=str(folder), **config),
        use_tpu=False,
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
    )


def _mirrored(folder):
    strategy = tf.distribute.MirroredStrategy(
        ["/cpu:0", "/cpu:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    config = tpu.RunConfig(
        model_dir=str(folder), train_distribute=strategy, eval_distribute=strategy
    )
    return tpu.TPUEstimator(linear_model.model_fn_for(tpu), config=config, **on_cores.BATCH_SIZES)


def _rows(count):
    features, labels = linear_model.rows(count)
    return tf.data.Dataset.from_tensor_slices(({"x": features}, labels))


@pytest.mark.parametrize(
    ("make", "place"),
    [
        (_on_host, "this host"),
        (functools.partial(on_cores.linear, cores=4), "4 emulated TPU cores"),
        (_mirrored, "MirroredStrategy (2 replicas)"),
    ],
    ids=["host", "cores", "strategy"],
)
def test_each_place_tells_its_steps_and_batches_and_that_it_ran_there(
    tmp_path, caplog, make, place
):
    made = make(tmp_path)
    with log_lines(caplog) as logged, followed("log"):
        made.train(on_cores.train_input_fn, max_steps=4)
        result = made.evaluate_result(linear_model.input_fn)
    checkpoint = "checkpoint at step 4"
    (trained,) = (line for line in logged if line.startswith("train: "))
    assert trained.startswith("train: step 4 of 4 (100 %), loss ") and trained.endswith(checkpoint)
    assert f"evaluate: {result}" in logged and "20 rows, loss " in str(result)
    (ran,) = (line for line in logged if line.startswith("Ran on "))
    assert ran.startswith(f"Ran on {place}: trace ") and ", evaluate " in ran


def test_both_losses_of_an_evaluation_are_named(tmp_path):
    made = _on_host(tmp_path)
    made.train(linear_model.endless_input_fn, max_steps=2)
    weights, bias = (made.get_variable_value(f"linear/{name}") for name in ("weights", "bias"))
    features, labels = linear_model.rows(11)
    squares = (features @ weights + bias - labels) ** 2
    # A batch of eight rows and one of three.
    means = [np.mean(squares[:8]), np.mean(squares[8:])]
    result = made.evaluate_result(lambda params: _rows(11).batch(params["batch_size"]))
    assert result.losses == pytest.approx(
        {"loss": np.mean(means), "loss_by_rows": np.mean(squares)}, rel=1e-5
    )


def test_predictions_tell_their_batches_now_and_then(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(progress_views, "LINE_SECONDS", 0.0)
    made = _on_host(tmp_path)
    made.train(linear_model.endless_input_fn, max_steps=1)
    with log_lines(caplog) as logged:
        assert len(list(made.predict(lambda params: _rows(40).batch(params["batch_size"])))) == 40
    assert [line for line in logged if line.startswith("predict: ")] == [
        *(f"predict: {done} batches" for done in range(2, 6)),
        "predict: 5 batches",
    ]


def test_progress_bounds_no_loop_and_asks_for_no_call():
    hook = ProgressHook(Reporting(progress=Progress(), max_steps=7), tf.constant(0.0))
    assert hook.every_n_steps is None
    assert allows_loops([hook]) and needs_no_call(hook)


def test_the_next_evaluation_is_with_a_checkpoint_that_is_not_throttled():
    now = [0.0]
    evaluations = EvaluateAfterSaving(None, throttle_secs=600, clock=lambda: now[0])
    assert evaluations.next_in_words() == "with the next checkpoint"
    evaluations._started = 0.0
    now[0] = 400
    assert evaluations.next_in_words() == "with a checkpoint in 3 min 20 s or later"
    now[0] = 600
    assert evaluations.next_in_words() == "with the next checkpoint"
