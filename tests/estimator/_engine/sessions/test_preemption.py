"""A training that is asked to stop writes its checkpoint first; real signals, in processes of their own."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.estimator._engine.sessions import stopped_training
from tfx_tpu_trainer.estimator._engine.checkpointing import checkpoints
from tfx_tpu_trainer.estimator._engine.sessions import preemption
from tfx_tpu_trainer.estimator._engine.sessions.preemption import StoppedBySignal, listening

REPOSITORY = pathlib.Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def _signals_are_not_ignored():
    """A shell's jobs in the background ignore SIGINT, and so do all that they start."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@contextlib.contextmanager
def _training(folder, *words, **environment):
    """A training that is under way."""
    command = [
        sys.executable,
        "-m",
        "tests.estimator._engine.sessions.stopped_training",
        str(folder),
        *words,
    ]
    with subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout.readline() == "ready\n", process.stderr.read()
            yield process
        finally:
            process.kill()


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("place", "number", "code"),
    [
        # The other tests send SIGTERM, and so does tests/chaos to trainings on the host.
        pytest.param("host", signal.SIGTERM, 143, marks=pytest.mark.sweep),
        ("cores", signal.SIGINT, -signal.SIGINT),
    ],
)
def test_it_stops_at_a_checkpoint_and_with_the_signals_exit_code(tmp_path, place, number, code):
    with _training(tmp_path, place) as process:
        process.send_signal(number)
        out, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert "ended" not in out
    step = checkpoints.global_step_of(str(tmp_path))
    assert step > 0 and (place == "host" or step % 5 == 0)
    name = signal.Signals(number).name
    assert f"{name}: training stops after this loop and its checkpoint, within 25 s" in errors
    path = tmp_path / f"model.ckpt-{step}"
    assert f"Training was stopped by {name}. Start it again to resume from {path}." in errors


@pytest.mark.e2e
def test_a_second_signal_or_the_end_of_the_grace_ends_it_at_once(tmp_path):
    def wait_for_the_third_batch(process):
        # It comes in 100 seconds, for which the process waits inside of TensorFlow.
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.5)

    with _training(tmp_path, "host", "slow") as process:
        wait_for_the_third_batch(process)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 143
    grace = {preemption.GRACE_VARIABLE: "0.5"}
    with _training(tmp_path, "host", "slow", **grace) as process:
        wait_for_the_third_batch(process)
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=20)[1]
    assert process.returncode == 143
    assert "did not finish within the 0.5 s of TFX_TPU_TRAINER_GRACE_SECS" in errors


@pytest.mark.e2e
@pytest.mark.parametrize("place", ["cores", pytest.param("strategy", marks=pytest.mark.sweep)])
def test_a_loop_that_outlasts_the_grace_is_cut_and_the_model_is_the_same(tmp_path, place):
    folder = tmp_path / "stopped"
    with _training(folder, place, "long", **{preemption.GRACE_VARIABLE: "8"}) as process:
        # Its 10,000 steps take 100 seconds.
        while not os.path.exists(folder / "model.ckpt-0.index"):
            time.sleep(0.05)
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=60)[1]
    assert process.returncode == 143, errors
    # At the end of the grace the process ends without a checkpoint.
    step = checkpoints.global_step_of(str(folder))
    assert 0 < step < stopped_training.LONG_LOOP
    trained = []
    for each in (folder, tmp_path / "expected"):
        estimator = stopped_training.estimator(each, place, loop=7, save_input_position=True)
        estimator.train(stopped_training.slow_rows(0), max_steps=step + 20)
        trained.append(estimator.get_variable_value("weight"))
    assert trained[0] == trained[1] != 0


@pytest.mark.e2e
@pytest.mark.sweep
def test_a_program_that_handles_the_signal_itself_goes_on(tmp_path):
    with _training(tmp_path, "host", "own_handler") as process:
        process.send_signal(signal.SIGTERM)
        out = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert "handled" in out and out.endswith("ended\n")
    assert checkpoints.global_step_of(str(tmp_path)) == 300


def test_outside_of_a_training_it_ends_at_once():
    def evaluating():
        with listening():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)

    with pytest.raises(StoppedBySignal) as ended:
        evaluating()
    assert ended.value.code == 143


def _stop(number):
    os.kill(os.getpid(), number)
    time.sleep(5)


def _makes_another_error(number):
    try:
        _stop(number)
    except BaseException as error:
        # pybind11's text, where the signal comes while it turns the end of an input into Python's error.
        raise RuntimeError(
            "pybind11::error_already_set: MISMATCH of original and normalized active exception "
            f"types: ORIGINAL OutOfRangeError REPLACED BY {type(error).__name__}: {error}"
        ) from None


def _leaves_context_managers(number):
    @contextlib.contextmanager
    def stack_in_order():
        try:
            yield
        except BaseException:
            raise AssertionError("Nesting violated") from None

    with stack_in_order(), stack_in_order():
        _stop(number)


def _forgets_the_stop(number):
    with contextlib.suppress(BaseException):
        _stop(number)
    # As `nest.flatten` does where the signal comes inside of its C++.
    raise TypeError


@pytest.mark.parametrize(
    "code", [_makes_another_error, _leaves_context_managers, _forgets_the_stop]
)
@pytest.mark.parametrize(
    ("number", "stop"), [(signal.SIGTERM, StoppedBySignal), (signal.SIGINT, KeyboardInterrupt)]
)
def test_a_stop_that_becomes_another_error_is_a_stop(code, number, stop):
    with pytest.raises(stop), listening():
        code(number)


def test_what_is_postponed_ends_first():
    reached = []

    def postponing():
        with listening() as outer, listening() as stop, stop.postponed():
            assert outer is stop
            os.kill(os.getpid(), signal.SIGINT)
            while stop.number is None:
                time.sleep(0.01)
            reached.append(stop.number)

    with pytest.raises(KeyboardInterrupt):
        postponing()
    assert reached == [signal.SIGINT]


def test_an_error_of_what_is_postponed_stays():
    def failing():
        with listening() as stop, stop.postponed():
            stop.ask(signal.SIGTERM)
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        failing()


def test_afterwards_the_signals_are_as_they_were():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    threads = threading.active_count()
    with listening():
        assert signal.getsignal(signal.SIGTERM) not in before
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == before
    assert threading.active_count() == threads
    assert signal.set_wakeup_fd(-1) == -1


def test_a_program_may_ask_for_it():
    assert not preemption.ask_to_stop(signal.SIGTERM)
    stopped = []

    def asking():
        with listening() as stop, stop.postponed():
            stopped.append(preemption.ask_to_stop(signal.SIGTERM))
            # A reminder is no second signal.
            stopped.append(preemption.ask_to_stop(signal.SIGTERM))

    with pytest.raises(StoppedBySignal):
        asking()
    assert stopped == [True, True]


def test_in_another_thread_signals_are_the_main_threads():
    seen = []

    def listen():
        with listening():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]


@pytest.mark.parametrize("text", ["soon", "-1", "inf", ""])
def test_a_grace_that_is_no_number_is_named(monkeypatch, text):
    monkeypatch.setenv(preemption.GRACE_VARIABLE, text)
    with pytest.raises(ValueError, match=f"TFX_TPU_TRAINER_GRACE_SECS='{text}' is not a number of"):
        preemption.grace_seconds()
    # Before the training, not at the signal that would have it save.
    with pytest.raises(ValueError, match="GRACE_SECS"), listening():
        pass
