"""Checkpoints that a thread writes while the training goes on: the same ones, told of when they are there."""

import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest
import tensorflow as tf

from tests.conftest import REPOSITORY
from tests.estimator import counting_model
from tests.estimator._engine.log_lines import log_lines
from tests.estimator.counting_model import BATCH, Killed, shuffled
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import Estimator, EstimatorSpec, RunConfig, tpu
from tfx_tpu_trainer.estimator._engine.checkpointing import async_saves, checkpoints
from tfx_tpu_trainer.estimator._engine.checkpointing.async_saves import (
    PatientListener,
    PendingWrite,
)
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import LoopEndHook

v1 = tf.compat.v1

STEPS = 33
CORES = {
    "use_tpu": True,
    "config": {
        "master": "emulated",
        "tpu_config": tpu.TPUConfig(num_shards=2, iterations_per_loop=5),
    },
}


@pytest.fixture
def aside(monkeypatch):
    """Has small checkpoints written aside, too."""
    monkeypatch.setattr(async_saves, "WORTH_SECONDS", 0.0)


@pytest.fixture
def late(aside, monkeypatch):
    """Has each of them written when it is waited for: after the steps up to the next one. Gives them."""
    begun = []

    class Late(PendingWrite):
        def __init__(self, folder, write):
            self.due = threading.Event()
            begun.append(self)
            super().__init__(folder, lambda: (self.due.wait(60), write()))

        def finish(self):
            self.due.set()
            super().finish()

    monkeypatch.setattr(async_saves, "PendingWrite", Late)
    return begun


class _Waits(v1.train.CheckpointSaverListener):
    """A listener that is to find the checkpoint."""

    def __init__(self):
        self.found = []

    def after_save(self, session, global_step_value):
        step = session.run(v1.train.get_global_step())
        self.found.append(step == global_step_value)


def _host(folder):
    return counting_model.estimator(folder, config={"keep_checkpoint_max": 3})


def _cores(folder):
    return counting_model.estimator(folder, **CORES)


def _strategy(folder):
    config = RunConfig(
        model_dir=str(folder),
        # With collectives, a strategy fails where one of another size has run in this process.
        train_distribute=tf.distribute.MirroredStrategy(
            ["cpu:0", "cpu:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
        ),
        save_input_position=True,
        save_checkpoints_steps=10,
    )
    return Estimator(
        counting_model.noisy_model_fn, config=config, params={"batch_size": BATCH // 2}
    )


def _files(folder):
    """The files of checkpoints and positions, but for the times in them and the batches that happen to wait."""
    files = {
        str(path.relative_to(folder)): path.parent == folder and path.read_bytes()
        for path in folder.rglob("*")
        if re.search(r"\.(data-\d+-of-\d+|index)$", path.name)
    }
    state = tf.train.get_checkpoint_state(str(folder))
    named = [os.path.basename(path) for path in state.all_model_checkpoint_paths]
    others = sorted(path.name for path in folder.iterdir() if "tfevents" not in path.name)
    return files, named, others


@mostly_swept("place", [_host, _cores, _strategy], kept=[_host, _cores])
def test_checkpoints_are_those_of_a_training_that_waits_for_them(tmp_path, late, place):
    waits = _Waits()
    place(tmp_path / "waits").train(shuffled, max_steps=STEPS, saving_listeners=[waits])
    assert waits.found == [True] * 5 and not late
    place(tmp_path / "aside").train(shuffled, max_steps=STEPS)
    assert len(late) == 3
    files = _files(tmp_path / "aside")
    assert files == _files(tmp_path / "waits")
    assert "model.ckpt-30.index" in files[0] and "input_position/host0-30.index" in files[0]


class _Hears(PatientListener):
    """Notes what it is told, at which step of the training, in which thread, and whether the checkpoint is there."""

    def __init__(self, folder):
        self._folder = folder
        self.heard = []

    def before_save(self, session, global_step_value):
        self._note("before", global_step_value, session)

    def before_commit(self, step):
        self._note("commit", step)

    def after_save(self, session, global_step_value):
        self._note("after", global_step_value, session)

    def end(self, session, global_step_value):
        self._note("end", global_step_value, session)

    def _note(self, what, step, session=None):
        at = None if session is None else int(session.run(v1.train.get_global_step()))
        is_there = (self._folder / f"model.ckpt-{step}.index").exists()
        named = tf.train.latest_checkpoint(str(self._folder)) or ""
        in_main = threading.current_thread() is threading.main_thread()
        self.heard.append((what, int(step), at, is_there and named.endswith(f"-{step}"), in_main))


def test_listeners_hear_of_a_checkpoint_in_the_main_thread_when_it_is_there(tmp_path, late):
    hears = _Hears(tmp_path)
    _host(tmp_path).train(shuffled, max_steps=20, saving_listeners=[hears])
    assert len(late) == 2
    assert hears.heard == [
        ("before", 0, 0, False, True),
        ("after", 0, 0, True, True),
        ("before", 10, 10, False, True),
        # It is waited for where the next one is due.
        ("commit", 10, None, False, False),
        ("after", 10, 20, True, True),
        ("before", 20, 20, False, True),
        # And at the end.
        ("commit", 20, None, False, False),
        ("after", 20, 20, True, True),
        ("end", 20, 20, True, True),
    ]


class _Looks(v1.train.SessionRunHook):
    """A hook of a user's own, which may look for the checkpoint of a step after the step."""

    def __init__(self, folder):
        self._folder = folder
        self.missing = []

    def after_run(self, run_context, run_values):
        step = int(run_context.session.run(v1.train.get_global_step()))
        path = tf.train.latest_checkpoint(str(self._folder))
        if step % 10 == 0 and not path.endswith(f"-{step}"):
            self.missing.append(step)


def test_a_hook_finds_the_checkpoint_of_the_step_that_it_sees(tmp_path, late):
    looks = _Looks(tmp_path)
    _host(tmp_path).train(shuffled, max_steps=STEPS, hooks=[looks])
    assert not late and looks.missing == []


def test_checkpoints_that_are_written_fast_are_not_copied(tmp_path, late, monkeypatch):
    monkeypatch.setattr(async_saves, "WORTH_SECONDS", 1e9)
    _host(tmp_path).train(shuffled, max_steps=STEPS)
    assert not late


def test_without_memory_for_a_copy_training_waits_and_says_so_once(
    tmp_path, late, monkeypatch, caplog
):
    monkeypatch.setattr(async_saves, "available_memory", lambda: 100)
    with log_lines(caplog) as logged:
        _host(tmp_path).train(shuffled, max_steps=STEPS)
    assert not late
    (line,) = [line for line in logged if "more than a quarter of the free memory" in line]
    assert line.startswith("Training waits while checkpoints are written: a copy of the variables")
    assert checkpoints.global_step_of(str(tmp_path)) == STEPS


class _FullDisk(LoopEndHook):
    """Lets the disk be full from the end of the first loop."""

    def __init__(self):
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def after_run(self, run_context, run_values):
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, self._before[1]))

    def restore(self):
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)


def test_a_full_disk_ends_the_training_with_the_same_line_and_leaves_nothing(tmp_path, late):
    def training():
        # Positions would be what does not fit.
        config = {"save_input_position": False, "log_step_count_steps": None}
        return counting_model.estimator(tmp_path, config=config)

    disk = _FullDisk()
    try:
        with pytest.raises(
            tf.errors.ResourceExhaustedError,
            match=re.escape(f"A checkpoint can't be written to {tmp_path} (File too large): free"),
        ):
            training().train(shuffled, max_steps=STEPS, hooks=[disk])
    finally:
        disk.restore()
    assert len(late) == 1
    left = {path.name for path in tmp_path.iterdir() if "tfevents" not in path.name}
    assert left == {
        "checkpoint",
        "graph.pbtxt",
        *(f"model.ckpt-0.{part}" for part in ("data-00000-of-00001", "index", "meta")),
    }
    trained = training().train(shuffled, max_steps=STEPS)
    assert trained.get_variable_value("global_step") == STEPS


class _Refuses(PatientListener):
    def before_commit(self, step):
        raise InterruptedError(f"not {step}")


def test_what_must_not_get_its_name_does_not_and_ends_the_training(tmp_path, aside):
    with pytest.raises(InterruptedError, match="not 10"):
        _host(tmp_path).train(shuffled, max_steps=STEPS, saving_listeners=[_Refuses()])
    assert [path.name for path in tmp_path.glob("*.index")] == ["model.ckpt-0.index"]
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("-0")


class _Slow(PatientListener):
    """Lets a checkpoint get its name a while after the training has gone on."""

    def before_commit(self, step):
        time.sleep(0.5)


class _RaisesOnce(LoopEndHook):
    """Raises in the first session that reaches step 15; notes where sessions start."""

    def __init__(self, error):
        self._error = error
        self.starts = []

    def after_create_session(self, session, coord):
        self.starts.append(int(session.run(v1.train.get_global_step())))

    def after_run(self, run_context, run_values):
        if run_context.session.run(v1.train.get_global_step()) >= 15 and len(self.starts) == 1:
            raise self._error


@pytest.fixture(scope="module")
def trained_on_cores(tmp_path_factory):
    """A training that nothing happens to."""
    return _cores(tmp_path_factory.mktemp("expected")).train(shuffled, max_steps=STEPS)


def test_a_training_that_fails_leaves_the_checkpoint_that_was_being_written(
    tmp_path, aside, trained_on_cores
):
    hook = _RaisesOnce(Killed())
    with pytest.raises(Killed):
        _cores(tmp_path / "failed").train(
            shuffled, max_steps=STEPS, hooks=[hook], saving_listeners=[_Slow()]
        )
    assert tf.train.latest_checkpoint(str(tmp_path / "failed")).endswith("-10")
    resumed = _cores(tmp_path / "failed").train(shuffled, max_steps=STEPS)
    counting_model.assert_equal(resumed, trained_on_cores)


def test_where_writing_fails_after_the_training_has_the_trainings_error_comes_out(
    tmp_path, late, caplog
):
    with log_lines(caplog) as logged, pytest.raises(Killed):
        _cores(tmp_path).train(
            shuffled,
            max_steps=STEPS,
            hooks=[_RaisesOnce(Killed())],
            saving_listeners=[_Refuses()],
        )
    assert "The checkpoint of step 10 was not written: not 10" in logged
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("-0")


def test_a_lost_session_goes_on_from_the_checkpoint_that_was_being_written(
    tmp_path, aside, trained_on_cores
):
    hook = _RaisesOnce(tf.errors.AbortedError(None, None, "lost"))
    trained = _cores(tmp_path / "lost").train(
        shuffled, max_steps=STEPS, hooks=[hook], saving_listeners=[_Slow()]
    )
    assert hook.starts == [0, 10]
    counting_model.assert_equal(trained, trained_on_cores)


def _nan_model_fn(features, labels, mode):
    weight = v1.get_variable("weight", initializer=1.0)
    step = v1.train.get_or_create_global_step()
    loss = tf.where(step < 15, weight, float("nan")) + 0.0 * tf.reduce_sum(features)
    train_op = v1.train.GradientDescentOptimizer(0.0).minimize(loss, step)
    return EstimatorSpec(mode, loss=loss, train_op=train_op)


def test_the_error_of_a_nan_names_the_checkpoint_that_was_being_written(tmp_path, aside):
    config = RunConfig(model_dir=str(tmp_path), save_checkpoints_steps=10)
    with pytest.raises(v1.train.NanLossDuringTrainingError) as caught:
        Estimator(_nan_model_fn, config=config).train(
            lambda: tf.data.Dataset.from_tensors([1.0]).repeat(),
            max_steps=STEPS,
            saving_listeners=[_Slow()],
        )
    assert f"the last checkpoint is {tmp_path / 'model.ckpt-10'}." in str(caught.value)


def test_who_asks_for_the_latest_checkpoint_waits_for_one_that_is_being_written(tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        step = v1.train.create_global_step()
        saver = v1.train.Saver()
        session.run(step.initializer)

        def write():
            time.sleep(0.3)
            with session.graph.as_default():
                saver.save(session, str(tmp_path / "model.ckpt"), global_step=0)

        pending = PendingWrite(str(tmp_path), write)
        assert checkpoints.latest_checkpoint(f"{tmp_path}/") == str(tmp_path / "model.ckpt-0")
        assert pending.is_done
        pending.finish()


@pytest.mark.e2e
def test_killed_while_a_thread_writes_it_ends_with_the_same_model(tmp_path):
    expected = counting_model.estimator(tmp_path / "expected").train(shuffled, max_steps=STEPS)
    folder = tmp_path / "killed"
    command = [
        sys.executable,
        "-m",
        "tests.estimator._engine.checkpointing.killed_writing",
        str(folder),
    ]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "writing\n"
        process.send_signal(signal.SIGKILL)
    assert {path.name for path in folder.glob("model.ckpt-20*")} == {"model.ckpt-20_temp"}
    assert tf.train.latest_checkpoint(str(folder)).endswith("-10")
    resumed = counting_model.estimator(folder).train(shuffled, max_steps=STEPS)
    counting_model.assert_equal(resumed, expected)
