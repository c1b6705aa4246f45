import collections
import importlib.util
import re

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tests.estimator._engine.event_files import read_values
from tests.estimator._engine.log_lines import log_lines
from tests.estimator.each_place import estimator, on_host_and_cores
from tests.estimator.tpu.on_cores import train_input_fn
from tfx_tpu_trainer._support.progress_views import LinePace
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator._engine.reporting.log_hooks import LossLogHook, ThroughputHook
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

v1 = tf.compat.v1


def _step_through(steps: int, hook: ThroughputHook) -> None:
    with fresh_graph():
        train_op = v1.train.get_global_step().assign_add(1)
        with v1.train.MonitoredSession(hooks=[hook]) as session:
            for _ in range(steps):
                session.run(train_op)


@pytest.mark.behaviour(395)
def test_without_a_folder_rates_are_logged_only(tmp_path, caplog):
    with log_lines(caplog) as logged:
        _step_through(3, ThroughputHook(every_n_steps=1, batch_size=8, output_dir=None))
    assert sum(line.startswith("global_step/sec: ") for line in logged) == 1
    assert sum(line.startswith("examples/sec: ") for line in logged) == 1
    assert list(tmp_path.iterdir()) == []


def test_no_two_lines_of_a_kind_come_within_five_seconds_and_the_events_have_all(tmp_path, caplog):
    now = [0.0]
    clock = lambda: now[0]  # noqa: E731

    def loss_of(step):
        now[0] += 1.0
        return np.float32(step)

    with fresh_graph(), log_lines(caplog) as logged:
        step = v1.train.get_global_step()
        train_op = step.assign_add(1)
        with tf.control_dependencies([train_op]):
            loss = tf.numpy_function(loss_of, [step.read_value()], tf.float32)
        hooks = [
            LossLogHook(loss, every_n_steps=2, pace=LinePace(clock=clock)),
            ThroughputHook(every_n_steps=2, output_dir=str(tmp_path), pace=LinePace(clock=clock)),
        ]
        with v1.train.MonitoredSession(hooks=hooks) as session:
            for _ in range(20):
                session.run([train_op, loss])
    shown = [int(line.split("step = ")[1].split()[0]) for line in logged if "loss = " in line]
    # A step takes a second. The line shows the step before the one that is reached.
    assert shown == [0, 5, 10, 15]
    assert sum(line.startswith("global_step/sec: ") for line in logged) == 3
    assert sorted(read_values(tmp_path)["global_step/sec"]) == list(range(3, 20, 2))


def test_a_global_step_that_stands_still_is_told_of_five_times(tmp_path, caplog):
    with fresh_graph(), log_lines(caplog) as logged:
        v1.train.get_global_step()
        nothing = tf.no_op()
        hook = ThroughputHook(every_n_steps=3, output_dir=None)
        with v1.train.MonitoredSession(hooks=[hook]) as session:
            for _ in range(9):
                session.run(nothing)
    said = [line for line in logged if line.startswith("It seems that global step")]
    assert len(said) == 5
    assert "Current value (could be stable): 0 vs previous value: 0" in said[0]


def _profiles(folder):
    """The files of profiles below a folder, where TensorBoard's plugin looks for them."""
    return sorted(folder.glob("plugins/profile/*/*.xplane.pb"))


def _marks(profile):
    """How often each event of a profile is there."""
    names = ("tensorflow.tsl.profiler.protobuf", "tensorflow.core.profiler.protobuf")
    found = [name for name in names if importlib.util.find_spec(name)]
    space = importlib.import_module(f"{found[0]}.xplane_pb2").XSpace()
    space.ParseFromString(profile.read_bytes())
    return collections.Counter(
        plane.event_metadata[event.metadata_id].name
        for plane in space.planes
        for line in plane.lines
        for event in line.events
    )


@pytest.mark.parametrize(("place", "calls", "steps"), [("host", 3, 3), ("cores", 2, 4)])
def test_a_profile_has_the_steps_that_were_asked_for(tmp_path, place, calls, steps):
    trained = estimator(tmp_path, place, config={"profile_steps": (5, 7)}, loop=2)
    trained.train(train_input_fn, max_steps=12)
    (profile,) = _profiles(tmp_path)
    marks = _marks(profile)
    # On cores a call makes two steps: 5 and 6, 7 and 8.
    assert marks["train"] == calls
    gradients = [n for name, n in marks.items() if "MatMul_grad/MatMul_1:" in name]
    assert gradients == [steps] * (2 if place == "cores" else 1)


@on_host_and_cores
def test_steps_before_and_after_are_not_profiled(tmp_path, place):
    trained = estimator(tmp_path, place, config={"profile_steps": (40, 50)})
    trained.train(train_input_fn, max_steps=6)
    assert not _profiles(tmp_path)
    trained = estimator(tmp_path, place, config={"profile_steps": (1, 4)})
    trained.train(train_input_fn, max_steps=12)
    assert not _profiles(tmp_path)


def test_a_training_that_ends_early_leaves_the_profile_of_its_steps(tmp_path):
    trained = estimator(tmp_path, "host", config={"profile_steps": (3, 500)})
    trained.train(train_input_fn, max_steps=6)
    assert len(_profiles(tmp_path)) == 1


def test_a_training_that_fails_leaves_the_profiler_to_the_next_one(tmp_path):
    def fails_at(step):
        def model_fn(features, labels, mode, params):
            spec = linear_model.model_fn_for(tpu)(features, labels, mode, params)
            at = tf.compat.v1.train.get_global_step().read_value()
            check = tf.debugging.assert_less(at, tf.constant(step, tf.int64))
            with tf.control_dependencies([check]):
                return spec._replace(loss=tf.identity(spec.loss))

        return model_fn

    asked = {"profile_steps": (2, 50)}
    failing = estimator(tmp_path / "failing", "host", fails_at(4), config=asked)
    with pytest.raises(tf.errors.InvalidArgumentError):
        failing.train(train_input_fn, max_steps=9)
    assert len(_profiles(tmp_path / "failing")) == 1
    estimator(tmp_path / "next", "host", config=asked).train(train_input_fn, max_steps=4)
    assert len(_profiles(tmp_path / "next")) == 1


def test_a_profiler_of_the_programs_own_goes_on(tmp_path, caplog):
    tf.profiler.experimental.start(str(tmp_path / "own"))
    try:
        trained = estimator(tmp_path / "model", "host", config={"profile_steps": (2, 3)})
        trained.train(train_input_fn, max_steps=4)
    finally:
        tf.profiler.experimental.stop()
    assert not _profiles(tmp_path / "model")
    assert len(_profiles(tmp_path / "own")) == 1
    assert re.search("The steps of profile_steps are not profiled: .*profiler", caplog.text)
