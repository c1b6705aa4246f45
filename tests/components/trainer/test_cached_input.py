"""Whether a TpuTrainer parses the rows of its training once, or in each epoch."""

from __future__ import annotations

import logging

import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.components.trainer.execution import Execution, examples_of, records
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.components.trainer.estimators import draws_elsewhere
from tfx_tpu_trainer.components.trainer.settings import TrainSettings
from tfx_tpu_trainer.estimator.places.choice import EMULATE_VARIABLE

pytestmark = pytest.mark.matrix

# 12 steps are 1.2 epochs of the rows.
ROWS = 990
TWO_EPOCHS = {"steps": 12, "train_batch_size": 102, "export_to_tpu": 0, "tf_random_seed": 1}


@pytest.fixture(scope="module")
def some_rows(tmp_path_factory):
    rows = {"train": records("train", ROWS), "eval": records("eval", 100)}
    return examples_of(tmp_path_factory.mktemp("some_rows"), **rows)


@mostly_swept(
    ("settings", "times"),
    [
        # Three parts of the training, with evaluations in between, are three sessions.
        ({"eval_every_steps": 5}, 1),
        ({"cache_input": 0}, 0),
        ({"train_batch_size": 64}, 0),
        ({"train_batch_size": 64, "cache_input": 1}, 1),
        ({"module": "tests.components.trainer.interrupted.own_input"}, 0),
    ],
    kept=[({"eval_every_steps": 5}, 1), ({"cache_input": 0}, 0)],
)
def test_rows_are_parsed_once_where_there_is_a_second_epoch(
    tmp_path, caplog, monkeypatch, some_rows, settings, times
):
    monkeypatch.setenv("TEST_FAILS_WHILE", str(tmp_path / "nothing"))
    execution = Execution.of_trainer(tmp_path, **{**TWO_EPOCHS, **settings})
    execution.inputs["examples"] = [some_rows]
    with caplog.at_level(logging.INFO):
        execution.run()
    assert caplog.text.count("Parsed the training input in") == times


@pytest.mark.parametrize(
    ("settings", "elsewhere"),
    [
        ({}, False),
        ({"use_tpu": True, "master": "emulated"}, False),
        ({"use_tpu": True, "master": "grpc://10.0.0.2:8470"}, True),
        ({"tpu": "v3:2x2", "train_batch_size": 64}, True),
        ({"tpu": "v5e:2x4", "train_batch_size": 64}, False),
    ],
)
def test_the_session_of_a_tpu_host_draws_rows_of_its_own(monkeypatch, settings, elsewhere):
    monkeypatch.delenv(EMULATE_VARIABLE, raising=False)
    assert draws_elsewhere(TrainSettings.parse(settings)) == elsewhere
    monkeypatch.setenv(EMULATE_VARIABLE, "1")
    assert not draws_elsewhere(TrainSettings.parse(settings))


@row(
    "data",
    "a row that can't be read in the middle of a train split whose rows are parsed once",
    "train split 'train': row 16 of",
    "has no feature 'fare_xf'",
    "correct it in the data",
)
def test_a_row_that_cannot_be_parsed_is_named(tmp_path, refused):
    execution = Execution.of_trainer(tmp_path, steps=9, train_batch_size=4, eval_batch_size=4)
    wrong = records("train", 20)
    example = tf.train.Example.FromString(wrong[15])
    del example.features.feature["fare_xf"]
    wrong[15] = example.SerializeToString()
    rows = examples_of(tmp_path / "rows", train=wrong, eval=records("eval", 8))
    execution.inputs["examples"] = [rows]
    with refused(ValueError):
        execution.run()


ADDS_ROWS = """
import os
import shutil

import tensorflow as tf

from tests.components.trainer import small_model


class _AddRows(tf.compat.v1.train.SessionRunHook):
    def after_run(self, run_context, run_values):
        rows = os.environ["TEST_ROWS"]
        if not os.path.exists(more := rows.replace("rows-0", "more-0")):
            shutil.copy(rows, more)


def model_fn(features, labels, mode, params):
    spec = small_model.model_fn(features, labels, mode, params)
    if mode == "train":
        return spec._replace(training_hooks=[_AddRows()])
    return spec


params = small_model.params
"""


@mostly_swept("settings", [{}, {"eval_every_steps": 40}], kept=[{"eval_every_steps": 40}])
def test_rows_that_are_added_while_it_trains_are_trained_on(
    tmp_path, caplog, monkeypatch, settings
):
    rows = examples_of(tmp_path / "rows", train=records("train", 20), eval=records("eval", 8))
    (path,) = (tmp_path / "rows" / "Split-train").iterdir()
    monkeypatch.setenv("TEST_ROWS", str(path))
    module_file = tmp_path / "module.py"
    module_file.write_text(ADDS_ROWS)
    execution = Execution.of_trainer(
        tmp_path,
        steps=40,
        train_batch_size=4,
        module=None,
        module_file=str(module_file),
        cache_input=1,
        export_to_tpu=0,
        **settings,
    )
    execution.inputs["examples"] = [rows]
    with caplog.at_level(logging.INFO):
        execution.run()
    assert "changed after their 20 rows were parsed; parsing them again" in caplog.text
    assert ": 40 rows, " in caplog.text
    assert execution.model.get_int_custom_property("global_step") == 40
