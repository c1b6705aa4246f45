"""Loops between the steps that hooks must see give identical results, only sooner."""

from __future__ import annotations

import glob
import re

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tests.estimator._engine.event_files import read_values
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import LoopEndHook
from tfx_tpu_trainer.estimator._engine.training import training_loops

v1 = tf.compat.v1

BATCH = 4


class _SeesEveryStep(v1.train.SessionRunHook):
    def __init__(self):
        self.calls = 0

    def after_run(self, run_context, run_values):
        self.calls += 1


class _CountsCalls(_SeesEveryStep, LoopEndHook):
    """Counts the calls that it gets, which need not be of every step."""


def _train(folder, *, hooks=(), input_fn=linear_model.endless_input_fn, steps=60, **config):
    config = {"save_summary_steps": 7, "log_step_count_steps": 9, **config}
    estimator = tpu.TPUEstimator(
        linear_model.model_fn_for(tpu, "adam"),
        config=tpu.RunConfig(
            model_dir=str(folder), tpu_config=tpu.TPUConfig(iterations_per_loop=1), **config
        ),
        use_tpu=False,
        train_batch_size=BATCH,
    )
    return estimator.train(input_fn, hooks=list(hooks), steps=steps)


def _variables(estimator):
    return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}


def _checkpoints(folder):
    steps = [int(re.search(r"-(\d+)\.index", path)[1]) for path in glob.glob(f"{folder}/*.index")]
    return sorted(steps)


@mostly_swept("jit_compile", [None, False], kept=[None])
def test_numbers_events_and_checkpoints_are_those_of_single_steps(tmp_path, jit_compile):
    few, every = _CountsCalls(), _SeesEveryStep()
    options = {"save_checkpoints_steps": 25, "jit_compile": jit_compile}
    fast = _train(tmp_path / "fast", hooks=[few], **options)
    # With summaries of each step. TensorFlow's hooks decide which step is due from a read of the step that nothing
    # orders before the step itself: on a busy machine they may be one step early.
    slow = _train(tmp_path / "slow", hooks=[every], save_summary_steps=1, **options)
    assert every.calls == 60
    assert few.calls < 48
    fast_values, slow_values = _variables(fast), _variables(slow)
    assert fast_values["global_step"] == 60
    for name, value in slow_values.items():
        np.testing.assert_array_equal(fast_values[name], value, err_msg=name)
    assert _checkpoints(tmp_path / "fast") == [0, 25, 50, 60]
    fast_events, slow_events = read_values(tmp_path / "fast"), read_values(tmp_path / "slow")
    due = range(1, 61, 7)
    assert fast_events["loss"] == {step: slow_events["loss"][step] for step in due}
    assert list(fast_events["examples/sec"]) == list(range(10, 61, 9))


def test_reports_of_loss_and_rates_cost_no_call(tmp_path):
    few, every = _CountsCalls(), _SeesEveryStep()
    options = {"save_summary_steps": None, "log_step_count_steps": 9}
    _train(tmp_path / "fast", hooks=[few], save_checkpoints_secs=None, **options)
    _train(tmp_path / "slow", hooks=[every], save_checkpoints_secs=None, **options)
    assert every.calls == 60
    # The first step, the last one, and one for each time that a loop's length is found out.
    assert few.calls < 10


def test_intervals_that_are_no_whole_numbers_are_those_of_tensorflows_timers(tmp_path):
    periods = {"save_checkpoints_steps": 1000 / 32, "save_summary_steps": 7.5}
    few = _CountsCalls()
    _train(tmp_path, hooks=[few], log_step_count_steps=9.5, steps=60, **periods)
    assert few.calls < 30
    # The original's steps: a timer is due at the first step that is not before the last one's and the interval.
    assert _checkpoints(tmp_path) == [0, 32, 60]
    events = read_values(tmp_path)
    assert list(events["loss"]) == list(range(1, 61, 8))
    assert list(events["global_step/sec"]) == list(range(11, 61, 10))


@pytest.mark.parametrize(("last_step", "reached"), [(30, 30), (7.5, 8)])
def test_a_hook_of_the_program_stops_at_its_step(tmp_path, last_step, reached):
    hook = v1.train.StopAtStepHook(last_step=last_step)
    estimator = _train(tmp_path, hooks=[hook], steps=None)
    assert estimator.get_variable_value("global_step") == reached


@mostly_swept("jit_compile", [None, False, True, "auto"], kept=[None])
def test_the_loop_is_in_no_meta_file(tmp_path, jit_compile):
    _train(tmp_path, save_checkpoints_steps=25, jit_compile=jit_compile)
    contents = [(tmp_path / f"model.ckpt-{step}.meta").read_bytes() for step in (0, 25, 50, 60)]
    assert len(set(contents)) == 1
    names = [node.name for node in v1.MetaGraphDef.FromString(contents[0]).graph_def.node]
    assert "linear/weights" in names
    assert not any("steps_ahead" in name for name in names)


def test_a_second_call_goes_on_from_the_first(tmp_path):
    fast = _train(tmp_path / "fast", steps=30)
    fast.train(linear_model.endless_input_fn, max_steps=100)
    slow = _train(tmp_path / "slow", hooks=[_SeesEveryStep()], steps=30)
    slow.train(linear_model.endless_input_fn, hooks=[_SeesEveryStep()], max_steps=100)
    assert fast.get_variable_value("global_step") == 100
    np.testing.assert_array_equal(
        fast.get_variable_value("linear/weights"), slow.get_variable_value("linear/weights")
    )


@pytest.mark.behaviour(139)
def test_training_ends_with_the_data_within_a_loop(tmp_path):
    def input_fn(params):
        return linear_model.input_fn(params, epochs=19)

    estimator = _train(
        tmp_path, input_fn=input_fn, steps=None, save_summary_steps=1000, log_step_count_steps=None
    )
    assert estimator.get_variable_value("global_step") == 19 * linear_model.ROWS / BATCH


@pytest.mark.behaviour(175)
def test_a_nan_within_a_loop_is_named_with_its_step(tmp_path):
    def poisoned(params):
        features, labels = linear_model.rows(200)
        labels[41 * BATCH] = np.nan
        rows = tf.data.Dataset.from_tensor_slices(({"x": features}, labels))
        return rows.batch(params["batch_size"])

    calls = _CountsCalls()
    with pytest.raises(v1.train.NanLossDuringTrainingError) as raised:
        _train(
            tmp_path,
            hooks=[calls],
            input_fn=poisoned,
            save_summary_steps=1000,
            log_step_count_steps=1000,
        )
    assert calls.calls < 41
    assert "global step 42" in str(raised.value)
    assert f"the last checkpoint is {tmp_path / 'model.ckpt-0'}" in str(raised.value)
    assert _checkpoints(tmp_path) == [0]


def test_an_infinite_loss_is_no_error(tmp_path):
    def model_fn(features, labels, mode, params):
        step = v1.train.get_global_step()
        seen = v1.get_variable("seen", initializer=0.0)
        train_op = tf.group(step.assign_add(1), seen.assign_add(1.0))
        loss = tf.reduce_sum(labels) * np.float32(np.inf)
        return tpu.TPUEstimatorSpec(mode, loss=tf.abs(loss), train_op=train_op)

    estimator = tpu.TPUEstimator(
        model_fn, config=tpu.RunConfig(model_dir=str(tmp_path)), use_tpu=False, train_batch_size=2
    )
    estimator.train(linear_model.endless_input_fn, steps=20)
    assert estimator.get_variable_value("seen") == 20


def test_loops_are_about_a_second_at_most(tmp_path, monkeypatch):
    monkeypatch.setattr(training_loops, "_LONGEST_SECONDS", 0.01)
    calls = _CountsCalls()

    def slow_input(params):
        def wait(features, label):
            with tf.control_dependencies([tf.py_function(_sleep, [], [])]):
                return features, tf.identity(label)

        return linear_model.endless_input_fn({"batch_size": 1}).unbatch().map(wait).batch(1)

    def _sleep():
        import time

        time.sleep(0.004)

    _train(tmp_path, hooks=[calls], input_fn=slow_input, save_summary_steps=1000)
    assert calls.calls > 10
