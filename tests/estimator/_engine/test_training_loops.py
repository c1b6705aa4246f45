"""Which loop a training runs, by its setting."""

import contextlib
import glob
import itertools
import re
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tests.estimator._engine.event_files import read_values
from tests.estimator._engine.log_lines import log_lines
from tests.estimator._engine.templates import make_template
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator._engine import nan_checks
from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import as_input_tensors
from tfx_tpu_trainer.estimator._engine.loops.compiled_loop import build_compiled_loop
from tfx_tpu_trainer.estimator._engine.loops.step_loop import build_template_loop
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import LoopEndHook
from tfx_tpu_trainer.estimator._engine.nan_checks import StopAtNanHook
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator._engine.training import training_loops
from tfx_tpu_trainer.estimator._engine.training.training_loops import LoopChoice, jit_compile_of
from tfx_tpu_trainer.estimator._engine.training.training_plan import check_train_op

v1 = tf.compat.v1

_STEPS = 40


def _template(products):
    """A model that sums what it reads, and so many products of matrices for XLA to compile."""
    inputs = as_input_tensors(
        tf.data.Dataset.range(1, _STEPS + 1).map(lambda n: tf.cast(n, tf.float32))
    )
    matrix = tf.fill([8, 8], inputs.features)
    for _ in range(products):
        matrix = tf.tanh(matrix @ matrix)
    total, step = v1.get_variable("total", initializer=0.0), v1.train.get_global_step()
    train_op = tf.group(total.assign_add(inputs.features), step.assign_add(1, read_value=False))
    loss = inputs.features + 0 * tf.reduce_sum(matrix)
    return make_template("train", loss=loss, train_op=train_op), total.read_value(), inputs


@contextlib.contextmanager
def _prepared(products, **options):
    """The loop that `"auto"` chooses of that model's two, prepared, its session and the sum."""
    with fresh_graph():
        template, total, inputs = _template(products)
        plain, compiled = build_template_loop(template), build_compiled_loop(template)
        loop = LoopChoice(plain, compiled, jit_compile="auto", **options)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            inputs.hooks[0].after_create_session(session, None)
            loop.prepare(session)
            yield loop, session, total


@pytest.mark.parametrize(("seconds", "compiles"), [(0.0, False), (600.0, True)])
def test_auto_gives_the_compiler_so_long_and_loses_no_step(seconds, compiles, caplog):
    options = {"clock": itertools.count().__next__, "compile_seconds": seconds}
    with log_lines(caplog), _prepared(100, **options) as (loop, session, total):
        loop.prepare(session)
        step = 0
        while step < _STEPS:
            _, step = loop.run(session, min(4, _STEPS - step))
        assert session.run(total) == sum(range(1, _STEPS + 1))
    lines = [r.getMessage() for r in caplog.records if "jit_compile" in r.getMessage()]
    assert len(lines) == 1
    given_up = "can't compile the steps: it has not done so within 0 s"
    assert (given_up in lines[0]) == (not compiles)
    for thread in threading.enumerate():
        if thread.name.startswith("compile_steps"):
            thread.join()


def test_auto_compares_calls_that_are_short_by_what_many_take(caplog):
    plain, compiled = [0.04, 0.04, 0.04], [0.045, 0.02, 0.02, 0.02]  # one call is disturbed
    seconds = [0.04, 0.04, *3 * [*plain, *compiled]]
    times = iter([time for call in seconds for time in (0.0, call)])
    with log_lines(caplog), _prepared(1, clock=lambda: next(times)) as (loop, session, total):
        for _ in range(_STEPS):
            loop.run(session, 1)
        assert session.run(total) == sum(range(1, _STEPS + 1))
    lines = [r.getMessage() for r in caplog.records if "jit_compile" in r.getMessage()]
    assert len(lines) == 1
    assert f" {1000 * sum(compiled) / 4:.3f} ms in the loop that XLA compiled" in lines[0]
    assert " 40.000 ms in the loop of single ops; continuing with the compiled loop." in lines[0]
    assert next(times, None) is None


@pytest.mark.parametrize("setting", [None, False, True, "auto"])
def test_only_auto_leaves_its_choice_to_the_graph_where_each_run_must_be_the_same(setting, caplog):
    with log_lines(caplog):
        assert jit_compile_of(setting, same_each_time=False) is setting
        assert not caplog.records
        found = jit_compile_of(setting, same_each_time=True)
        assert found is (None if setting == "auto" else setting)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == (setting == "auto")
    assert all("measures nothing" in line for line in lines)


def _count():
    return v1.train.get_global_step().assign_add(1, read_value=False)


def _weight():
    return v1.get_variable("model/weight", initializer=2.0)


def _check(build, **fields):
    with fresh_graph():
        return check_train_op(make_template("train", train_op=build(), **fields))


def _minimize(optimizer):
    return lambda: optimizer().minimize(tf.square(_weight()), v1.train.get_global_step())


def _reuses(build):
    def built():
        with v1.variable_scope("", reuse=v1.AUTO_REUSE):
            return build()

    return built


def _statistic():
    _weight()
    mean = v1.get_variable("mean", initializer=0.0, trainable=False)
    return tf.group(mean.assign(3.0), _count())


@pytest.mark.parametrize(
    ("build", "trains"),
    [
        (_minimize(lambda: v1.train.AdamOptimizer()), True),
        (_minimize(lambda: v1.tpu.CrossShardOptimizer(v1.train.FtrlOptimizer(0.1))), True),
        (lambda: tf.group(_weight().assign_add(1.0), _count()), True),
        (lambda: tf.cond(_weight() > 1, lambda: _weight().assign(1.0), lambda: 0.0), True),
        (lambda: tf.group(v1.py_func(lambda x: x, [_weight()], tf.float32), _count()), True),
        (_statistic, False),
        (_count, False),
        (lambda: tf.no_op(), False),
    ],
    ids=["adam", "cross shard", "assign", "in a branch", "python", "statistic", "count", "no op"],
)
@pytest.mark.behaviour(170)
def test_a_train_op_that_changes_a_variable_or_has_none_to_train_passes_in_silence(
    caplog, build, trains
):
    with log_lines(caplog) as logged:
        assert _check(_reuses(build)) is trains
    assert not [line for line in logged if "changes no variable" in line]


def _minimized_and_left_out():
    weight = _weight()
    v1.train.AdamOptimizer().minimize(tf.square(weight))
    return _count()


@pytest.mark.parametrize(
    ("build", "cause"),
    [
        (_minimized_and_left_out, "The graph has 'Adam/update_model/weight"),
        (
            lambda: [_weight(), _count()][1],
            "The graph has no op of an optimizer: return the result of an optimizer's",
        ),
        (
            lambda: [_weight(), tf.constant("no step")][1],
            "The graph has no op of an optimizer: return the result of an optimizer's",
        ),
    ],
    ids=["lost", "only counts", "a tensor"],
)
@pytest.mark.behaviour(170)
def test_a_train_op_that_trains_nothing_gets_one_warning_with_the_cause(caplog, build, cause):
    with log_lines(caplog) as logged:
        assert not _check(build)
    (warning,) = [line for line in logged if "changes no variable except the global step" in line]
    assert "1 trainable ones" in warning
    assert cause in warning


def test_no_op_is_asked_for_its_definition_by_itself(monkeypatch):
    asked, node_def = [], tf.Operation.node_def.fget

    def counted(op):
        asked.append(op.name)
        return node_def(op)

    with fresh_graph():
        template = make_template("train", train_op=_minimize(lambda: v1.train.AdamOptimizer())())
        monkeypatch.setattr(tf.Operation, "node_def", property(counted))
        assert check_train_op(template)
    assert not asked


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


def _train_on_losses(folder, losses: list[float], *, save: bool) -> int:
    """Steps through `losses` under the hook; returns the steps made."""
    with fresh_graph():
        step = v1.train.get_global_step()
        loss = tf.gather(tf.constant(losses), step.read_value())
        with tf.control_dependencies([loss]):
            train_op = step.assign_add(1)
        with v1.train.MonitoredTrainingSession(
            checkpoint_dir=str(folder) if save else None,
            save_checkpoint_steps=2 if save else None,
            save_checkpoint_secs=None,
            save_summaries_steps=None,
            log_step_count_steps=None,
            hooks=[
                StopAtNanHook(loss, model_dir=str(folder)),
                v1.train.StopAtStepHook(last_step=len(losses)),
            ],
        ) as session:
            made = 0
            while not session.should_stop():
                made = session.run(train_op)
        return made


@pytest.mark.behaviour(175)
def test_it_is_tensorflows_error(tmp_path):
    with pytest.raises(v1.train.NanLossDuringTrainingError, match="global step 1; none was saved"):
        _train_on_losses(tmp_path, [np.nan], save=False)


def test_a_finite_or_infinite_loss_goes_on(tmp_path):
    assert _train_on_losses(tmp_path, [1.0, np.inf, 0.5], save=False) == 3


def _run(fetches, hooks=()):
    with v1.train.MonitoredSession(hooks=hooks) as session:
        return session.run(fetches)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.behaviour(174)
def test_a_trainable_variable_that_is_no_number(value):
    with fresh_graph():
        weight = v1.get_variable("scope/weight", initializer=1.0)
        spoil = weight.assign(value, read_value=False)
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="Gradient for scope/weight is NaN"
        ):
            _run(nan_checks.fail_at_nan_after(spoil))


@pytest.mark.behaviour(174)
def test_other_variables_and_numbers_pass():
    with fresh_graph():
        v1.get_variable("weight", initializer=1.0)
        v1.get_variable("count", initializer=1)
        v1.get_variable("statistic", initializer=np.float32(np.nan), trainable=False)
        _run(nan_checks.fail_at_nan_after(tf.no_op()), [nan_checks.VariableChecksHook()])


@pytest.mark.behaviour(174)
def test_the_hook_looks_when_the_session_is_made():
    with fresh_graph():
        v1.get_variable("weight", initializer=np.float32(np.nan))
        with pytest.raises(tf.errors.InvalidArgumentError, match="Gradient for weight is NaN"):
            _run(tf.no_op(), [nan_checks.VariableChecksHook()])
