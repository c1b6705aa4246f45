"""Tests interrupted trainings that are started again, as an orchestrator does."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.components.trainer import interrupted_model
from tests.components.trainer import interrupted_own_input as own_input
from tests.components.trainer.execution import examples_of, records
from tests.components.trainer.interrupted_model import STEPS, FailedAttempt, attempt, fail
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.components import TpuTrainerExecutor
from tfx_tpu_trainer.components.evaluation import read_eval_metrics
from tfx_tpu_trainer.components.evaluation._learning_curve import read_learning_curve
from tfx_tpu_trainer.components.trainer.resume import (
    RECORD_FILE,
    CheckpointFolder,
    TrainingIdentity,
)
from tfx_tpu_trainer.components.trainer.train_job import TrainJob
from tfx_tpu_trainer.estimator._engine.checkpointing import checkpoints

pytestmark = pytest.mark.matrix

v1 = tf.compat.v1


@pytest.fixture
def interrupted(tmp_path, monkeypatch):
    """The file that makes trainings fail."""
    path = tmp_path / "machine_is_gone"
    path.write_text("train")
    monkeypatch.setenv(interrupted_model.FAILS, str(path))
    return path


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("failed")
    machine_is_gone = folder / "machine_is_gone"
    machine_is_gone.write_text("train")
    first = attempt(folder, "1")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(interrupted_model.FAILS, str(machine_is_gone))
        fail(first)
    return FailedAttempt(first, folder / "checkpoints")


@pytest.fixture(scope="module")
def second(failed, tmp_path_factory):
    """The second attempt at the same training, which has ended."""
    folder = tmp_path_factory.mktemp("second")
    failed.copy_to(folder)
    execution = attempt(folder, "2")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(interrupted_model.FAILS, str(folder / "nothing"))
        execution.run()
    return execution


def _folders(tmp_path):
    return sorted((tmp_path / "checkpoints" / "TpuTrainer").iterdir())


def _first_steps(execution):
    """Returns the steps at which sessions began: each saves a checkpoint then, which events show."""
    folder = execution.outputs["model_run"][0].uri
    starts = []
    for path in sorted(tf.io.gfile.glob(os.path.join(folder, "events*"))):
        for event in v1.train.summary_iterator(path):
            if event.session_log.status == event.session_log.CHECKPOINT:
                starts.append(event.step)
    return starts


def test_a_second_attempt_goes_on_from_the_last_checkpoint(failed, second):
    first = failed.execution
    (folder,) = _folders(failed.checkpoint_root.parent)
    assert os.listdir(first.outputs["model_run"][0].uri) == []
    assert first.files() == []
    assert checkpoints.global_step_of(str(folder)) == 10
    assert _first_steps(second) == [0, 10, 10, 20, 30]
    metrics = read_eval_metrics(second.model.uri)
    assert metrics.global_step == STEPS
    # The folder has gone, and what names a checkpoint names the one in the artifact.
    assert _folders(second.folder.parent) == []
    model_run = second.outputs["model_run"][0].uri
    assert metrics.checkpoint == checkpoints.latest_checkpoint(model_run)
    assert metrics.checkpoint == os.path.join(model_run, f"model.ckpt-{STEPS}")
    assert RECORD_FILE not in os.listdir(model_run)


def test_an_interrupted_training_ends_with_the_model_of_one_that_was_not(
    tmp_path, interrupted, second
):
    interrupted.unlink()
    expected = attempt(tmp_path, "3")
    expected.run()
    _assert_same_model(second, expected)


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        # The kill sweep resumes trainings like these two.
        pytest.param(
            {"eval_every_steps": 12, "save_checkpoints_steps": 5}, None, marks=pytest.mark.sweep
        ),
        pytest.param(
            {"use_tpu": 1, "master": "emulated", "num_shards": 2, "iterations_per_loop": 5},
            None,
            marks=pytest.mark.sweep,
        ),
        # tests/estimator/test_exact_resume.py resumes an input like this one.
        pytest.param(
            {"module": own_input.__name__, "save_input_position": 1}, None, marks=pytest.mark.sweep
        ),
        # The checkpoint is in the second epoch of rows that are parsed once (tests/components/inputs/row_cache).
        pytest.param({}, 400, marks=pytest.mark.sweep),
    ],
)
def test_so_does_one_with_other_settings_or_rows(tmp_path, interrupted, settings, rows):
    failed, resumed, expected = (attempt(tmp_path, name, **settings) for name in "123")
    if rows:
        splits = {split: records(split, rows) for split in ("train", "eval")}
        examples = [examples_of(tmp_path / "rows", **splits)]
        for each in (failed, resumed, expected):
            each.inputs["examples"] = examples
    fail(failed)
    interrupted.unlink()
    resumed.run()
    expected.run()
    _assert_same_model(resumed, expected)


@pytest.mark.sweep
def test_it_goes_on_on_a_slice_of_another_size(tmp_path, interrupted, monkeypatch, caplog):
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATE", "1")
    sizes = {"1": "v5e:2x4", "2": "v5e:2x2", "3": "v5e:2x4"}
    failed, resumed, expected = (
        attempt(tmp_path, name, tpu=tpu, iterations_per_loop=5) for name, tpu in sizes.items()
    )
    fail(failed)
    interrupted.unlink()
    with caplog.at_level(logging.INFO):
        resumed.run()
    assert "This training had 8 replicas" in caplog.text
    expected.run()
    _assert_same_model(resumed, expected, rtol=1e-5)


def _assert_same_model(resumed, expected, *, rtol=0):
    folders = [each.outputs["model_run"][0].uri for each in (resumed, expected)]
    paths = [checkpoints.latest_checkpoint(folder) for folder in folders]
    readers = [tf.train.load_checkpoint(path) for path in paths]
    names = readers[0].get_variable_to_shape_map()
    assert names == readers[1].get_variable_to_shape_map()
    for name in names:
        got, wanted = (reader.get_tensor(name) for reader in readers)
        np.testing.assert_allclose(got, wanted, rtol=rtol, err_msg=name)
    assert not any("input_position" in name for name in os.listdir(folders[0]))


_OWN = ({"module": own_input.__name__}, "the input_fn is the module's own")


@mostly_swept(
    ("settings", "cause"),
    [_OWN, ({"save_input_position": 0}, "save_input_position=False")],
    kept=[_OWN],
)
def test_an_input_that_is_not_saved_is_told_in_one_line(
    tmp_path, interrupted, caplog, settings, cause
):
    with caplog.at_level(logging.INFO):
        fail(attempt(tmp_path, "1", **settings))
    (line,) = [
        record.getMessage()
        for record in caplog.records
        if "The position of the input" in record.getMessage()
    ]
    assert line.startswith(f"The position of the input is not saved: {cause}")
    (folder,) = _folders(tmp_path)
    assert not (folder / "input_position").exists()


def test_evaluations_on_the_way_are_kept(tmp_path, interrupted):
    settings = {"eval_every_steps": 10, "best_metric": "accuracy"}
    settings["eval_args"] = '{"num_steps": 1}'
    fail(attempt(tmp_path, "1", **settings))
    interrupted.unlink()
    second = attempt(tmp_path, "2", **settings)
    second.run()
    model_run = second.outputs["model_run"][0].uri
    for folder in (model_run, second.model.uri):
        curve = read_learning_curve(folder)
        assert [point.step for point in curve.points] == [10, 20, 30]
        assert {os.path.dirname(point.metrics.checkpoint) for point in curve.points} == {model_run}
    best = os.path.join(model_run, curve.best_checkpoint)
    assert read_eval_metrics(second.model.uri).checkpoint == best
    assert v1.train.checkpoint_exists(best)


@pytest.mark.parametrize(
    "change",
    [
        {"params": '{"learning_rate": 0.01}'},
        {"train_batch_size": 32},
        {"node": "Other"},
        {"tf_random_seed": 2},
    ],
)
def test_another_training_does_not_go_on_from_it(tmp_path, change):
    assert _digest(attempt(tmp_path, "1")) != _digest(attempt(tmp_path, "2", **change))


@pytest.mark.parametrize(
    "change",
    [
        {"save_checkpoints_steps": 5},
        {"serving_check_timeout": 7},
        {"checkpoint_root": "/elsewhere"},
        {"keep_checkpoint_max": 1},
        {"save_input_position": 0},
        {"cache_input": 0},
        {"tpu": "v5e:2x4"},
        {"use_tpu": 1, "master": "emulated", "num_shards": 2},
    ],
)
def test_the_same_training_otherwise_run_does(tmp_path, change):
    assert _digest(attempt(tmp_path, "1")) == _digest(attempt(tmp_path, "2", **change))


def test_other_inputs_are_another_training(tmp_path):
    one, other, changed = (attempt(tmp_path, name) for name in "123")
    for number, execution in enumerate((other, changed)):
        (schema,) = execution.inputs["schema"]
        schema.uri = str(shutil.copytree(schema.uri, tmp_path / f"schema{number}"))
    digests = [_digest(one), _digest(other), _digest(changed)]
    # An imported artifact may be written over in its place.
    (schema_file,) = (tmp_path / "schema1").iterdir()
    schema_file.write_text(schema_file.read_text() + "\n")
    digests.append(_digest(changed))
    assert len(set(digests)) == 4


def test_without_resume_a_second_attempt_begins_anew(tmp_path, interrupted):
    fail(attempt(tmp_path, "1", resume=0))
    assert not (tmp_path / "checkpoints").exists()


@row(
    "checkpoints",
    "the newest checkpoint of an attempt, cut off: the next attempt passes it over",
    "model.ckpt-10 is damaged or incomplete; training resumes from",
)
def test_a_damaged_checkpoint_is_passed_over(tmp_path, interrupted, failed, caplog, refused):
    failed.copy_to(tmp_path)
    (folder,) = _folders(tmp_path)
    (damaged,) = folder.glob("model.ckpt-10.data*")
    damaged.write_bytes(damaged.read_bytes()[:-10])
    interrupted.unlink()
    second = attempt(tmp_path, "2")
    with caplog.at_level(logging.WARNING):
        second.run()
    refused.log(caplog.text)
    assert _first_steps(second) == [0, 10, 0, 10, 20, 30]


def test_the_record_says_what_the_folder_belongs_to(tmp_path):
    execution = attempt(tmp_path, "1")
    identity = _identity(execution)
    folder = CheckpointFolder.below(str(tmp_path), identity)
    folder.take_up()
    record = json.loads((tmp_path / identity.digest / RECORD_FILE).read_text())
    assert record["training"]["inputs"]["examples"][0]["uri"] == execution.inputs["examples"][0].uri
    assert record["training"]["settings"]["train_batch_size"] == 64


def _identity(execution):
    inputs, outputs, properties = execution.inputs, execution.outputs, execution.properties
    job = TrainJob.from_execution(
        inputs, outputs, properties, read_fn_args=TpuTrainerExecutor()._GetFnArgs
    )
    return TrainingIdentity.of(dataclasses.replace(job, pipeline="taxi"))


def _digest(execution):
    return _identity(execution).digest
