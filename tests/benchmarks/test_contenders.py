"""Tests that the contenders train the same model: from the same values on the same data, to the same loss."""

import math
import time

import psutil
import pytest

from benchmarks import data
from benchmarks.contenders import CONTENDERS, estimators
from benchmarks.measure import measure
from benchmarks.plan import Measurement, Plan, Request
from benchmarks.processes import Failed, take_turns
from tests.sweeps import mostly_swept

pytestmark = pytest.mark.matrix

TINY = Plan(
    segment_steps=4,
    segments=1,
    eval_batches=(2, 4),
    predict_batches=(1, 2),
    pairs=1,
    first_steps=2,
    loop_steps=2,
)
STEPS = 10
HERE = [name for name, contender in CONTENDERS.items() if not contender.of_original]
TRAINING = [name for name in HERE if name != "input" and "train" in CONTENDERS[name].activities]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    data.write_records(folder)
    return folder


def request(contender, model, folder, model_dir):
    return Request(
        contender=contender,
        model=model,
        plan=TINY,
        data_folder=str(folder),
        model_dir=str(model_dir),
    )


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bare")
    return measure(request("bare", "mlp", folder, folder / "model"))


def test_building_and_closing_are_no_part_of_an_evaluation_and_a_prediction(tmp_path):
    runner = estimators.make(request("ours", "mlp", tmp_path, str(tmp_path / "model")))
    runner.first_steps(1)
    for run in (runner.evaluate, runner.predict):
        started = time.monotonic()
        run(2)
        # Building the graph alone takes that long.
        assert 0 < runner.work_seconds < time.monotonic() - started - 0.02


@mostly_swept("contender", [name for name in TRAINING if name != "bare"], kept=["ours-8-cores"])
def test_the_mlp_is_the_same_in_every_contender(contender, bare, tmp_path):
    found = measure(request(contender, "mlp", tmp_path, tmp_path / "model"))
    assert found.steps == bare.steps == STEPS
    assert found.eval_loss == pytest.approx(bare.eval_loss, rel=1e-5)


# Keras 3 does not add up the gradients of an id that a batch has more than once before it squares
# them, so its Adam is another one; for the CNN, Kerases scale pixels by 1/255 in place of dividing.
@pytest.mark.sweep
@pytest.mark.parametrize(
    ("model", "contender"),
    [("cnn", "ours"), ("wide_and_deep", "ours"), ("wide_and_deep", "tf_keras-loop")],
)
def test_the_larger_models_too(model, contender, records, tmp_path):
    bare = measure(request("bare", model, records, tmp_path / "bare"))
    found = measure(request(contender, model, records, tmp_path / "model"))
    assert found.eval_loss == pytest.approx(bare.eval_loss, rel=1e-5)


@pytest.mark.sweep
def test_of_64_cores_only_the_first_step_is_measured(tmp_path):
    found = measure(request("ours-64-cores", "mlp", tmp_path, tmp_path / "model"))
    assert found.steps == TINY.first_steps
    assert found.first_step_seconds > 0
    assert found.eval_loss is None
    assert math.isnan(found.train_steps_per_second)
    assert math.isnan(found.predict_examples_per_second)


@pytest.mark.sweep
def test_the_input_alone_trains_nothing(records, tmp_path):
    found = measure(request("input", "wide_and_deep", records, tmp_path / "model"))
    assert found.eval_loss is None
    assert found.train_steps_per_second > 0


@pytest.fixture
def waiting(tmp_path):
    """A contender's turns after the first one, and its process."""
    turns = take_turns(request("bare", "mlp", tmp_path, ""), threads=1, timeout=120)
    assert next(turns) is None
    [process] = psutil.Process().children()
    return turns, process


def test_a_process_of_its_own_measures_an_activity_at_each_turn(waiting):
    turns, process = waiting
    assert [next(turns) for _ in range(2)] == [None] * 2
    before = sum(process.cpu_times())
    time.sleep(0.3)
    assert sum(process.cpu_times()) - before < 0.1
    [found] = turns
    assert isinstance(found, Measurement), found
    assert found.steps == STEPS
    assert 0 < found.train_memory_mb <= found.memory_mb
    assert found.first_step_seconds > 0
    assert not process.is_running()


def test_a_process_ends_where_its_turns_do(waiting):
    turns, process = waiting
    turns.close()
    assert not process.is_running()


def test_a_contender_that_is_killed_while_it_waits_says_so(waiting):
    turns, process = waiting
    process.kill()
    assert [*turns] == [Failed("ended by signal 9")]


def test_a_contender_that_hangs_is_stopped(tmp_path):
    turns = take_turns(request("bare", "mlp", tmp_path, ""), threads=1, timeout=0.01)
    assert [*turns] == [Failed("took longer than 0.01 s")]


@pytest.mark.sweep
@pytest.mark.parametrize("model", ["mlp", "cnn", "wide_and_deep"])
def test_the_original_trains_the_same(model, records, tmp_path):
    *_, found = take_turns(request("real", model, records, ""), threads=2, timeout=300)
    assert isinstance(found, Measurement), found
    bare = measure(request("bare", model, records, tmp_path / "bare"))
    assert found.tensorflow == "2.15.1"
    assert found.eval_loss == pytest.approx(bare.eval_loss, rel=1e-5)
