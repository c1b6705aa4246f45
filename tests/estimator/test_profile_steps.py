"""`RunConfig(profile_steps=...)`: steps profiled for TensorBoard's profile plugin."""

from __future__ import annotations

import collections
import importlib.util
import re

import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tests.estimator.each_place import estimator, on_host_and_cores
from tests.estimator.tpu.on_cores import train_input_fn
from tfx_tpu_trainer.estimator import tpu


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
