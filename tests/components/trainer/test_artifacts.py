"""Tests the artifacts of a training, and that a diverged model is neither published nor exported."""

from __future__ import annotations

import json
import logging
import math
import os
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

from tests import tfx_testdata
from tests.bad_input import row
from tests.components.report.pages import Page
from tests.components.report.statistics_files import write_statistics
from tests.components.trainer import small_model
from tests.components.trainer.execution import Execution
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.components import TpuTrainerExecutor
from tfx_tpu_trainer.components.clusters._html_page import HtmlFile
from tfx_tpu_trainer.components.evaluation import EvalMetrics, read_eval_metrics
from tfx_tpu_trainer.components.report import read_run_data
from tfx_tpu_trainer.components.report._sections import seconds_by_part
from tfx_tpu_trainer.components.trainer.artifacts import ModelDivergedError, check_finite
from tfx_tpu_trainer.components.trainer.resume import TrainingIdentity
from tfx_tpu_trainer.components.trainer.train_job import TrainJob

v1 = tf.compat.v1


@pytest.fixture
def checkpoint(tmp_path):
    """Writes variables as a checkpoint."""

    def write(**values):
        with tf.Graph().as_default(), v1.Session() as session:
            for name, value in values.items():
                v1.get_variable(name, initializer=value)
            session.run(v1.global_variables_initializer())
            return v1.train.Saver().save(session, str(tmp_path / "model.ckpt"), 7)

    return write


def _bfloat16(values):
    return np.array(values, tf.bfloat16.as_numpy_dtype)


def _metrics(checkpoint=None, **overall):
    return EvalMetrics({"loss": 0.5, **overall}, global_step=7, checkpoint=checkpoint)


def test_a_sound_model_passes(checkpoint):
    path = checkpoint(kernel=np.float32([1.5]), word=np.array(["a"]), step=np.int64(7))
    check_finite(_metrics(path, recall=math.nan))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_variables_that_are_not_finite_are_named_and_counted(checkpoint, value):
    values = np.ones([40, 50], np.float32)
    values[3, :4] = value
    path = checkpoint(good=np.float32(1), kernel=values, half=_bfloat16([value]))
    message = (
        "the model has diverged by step 7, and is not exported: half (1 of 1 values are NaN or "
        f"Inf), kernel (4 of 2,000 values are NaN or Inf) in {path}. Lower the learning rate"
    )
    with pytest.raises(ModelDivergedError) as caught:
        check_finite(_metrics(path))
    assert str(caught.value).startswith(message)


def test_of_many_variables_the_first_are_named(checkpoint):
    path = checkpoint(**{f"v{i}": np.float32(math.nan) for i in range(8)})
    with pytest.raises(ModelDivergedError, match=r"v4 \(1 of 1 .*\) and 3 more variables in"):
        check_finite(_metrics(path))


@pytest.mark.parametrize(
    ("overall", "said"),
    [({"loss": math.nan}, "loss is nan"), ({"perplexity": math.inf}, "perplexity is inf")],
)
@row(
    "eval_metrics",
    "a model whose loss is NaN or whose metric is infinite: not exported",
    "not exported: ",
)
def test_metrics_that_are_not_finite_are_told_without_a_checkpoint(overall, said, refused):
    with refused(ModelDivergedError) as raised:
        check_finite(_metrics(**overall))
    assert re.search(f"not exported: {said}. Lower", str(raised.value))


@pytest.mark.e2e
@row(
    "eval_metrics",
    "a model whose variables are NaN: not exported",
    "has diverged by step 1, and is not exported",
)
def test_nothing_of_it_is_exported(tmp_path, refused):
    # The one step has a finite loss, and leaves variables that are not.
    rate = '{"learning_rate": 1e39}'
    execution = Execution.of_trainer(tmp_path, steps=1, params=rate)
    with refused(ModelDivergedError):
        execution.run()
    assert os.listdir(execution.model.uri) == []
    assert os.listdir(execution.outputs["evaluation"][0].uri) == []


_STEPS = 20
_DATA = {"train": {"fare": [1.0, 3.0, 8.0]}, "eval": {"fare": [2.0, 4.0]}}


def _page(folder) -> Page:
    return Page(pathlib.Path(folder, "run.html").read_text("utf-8"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    execution = Execution.of_trainer(
        tmp_path_factory.mktemp("trained"),
        steps=_STEPS,
        slicing_specs=json.dumps([{"feature_keys": ["payment_type_xf"]}]),
        eval_every_steps=10,
        export_to_tpu=0,
    )
    execution.add_statistics(write_statistics(tmp_path_factory.mktemp("data"), **_DATA))
    execution.run()
    return execution


@pytest.fixture(scope="module")
def run(trained):
    return read_run_data(trained.outputs["model_run"][0].uri)


def test_numbers_and_slices_are_those_of_the_model(trained, run):
    metrics = read_eval_metrics(trained.model.uri)
    assert run.measured.metrics == metrics.overall
    # As ML Metadata has them too.
    for name, value in metrics.overall.items():
        assert trained.model.get_custom_property(f"eval_{name}") == pytest.approx(value)
    assert run.measured.num_examples == metrics.num_examples
    assert len(metrics.slices) > 2
    assert [(one.num_examples, one.metrics) for one in run.measured.slices] == [
        (one.num_examples, one.metrics) for one in metrics.slices
    ]
    page = _page(trained.outputs["model_run"][0].uri)
    assert f"{metrics.overall['accuracy']:.6g}" in page.row("accuracy")
    assert f"measured on {metrics.num_examples:,} rows" in page.text


def test_learning_is_that_of_the_evaluations_on_the_way(run):
    (accuracy,) = (
        series
        for series in run.learning.series
        if (series.source, series.name) == ("eval", "accuracy")
    )
    assert accuracy.steps == (10, 20)


def test_intervals_and_errors_are_those_of_the_rows(trained, run):
    accuracy, rows = run.measured.metrics["accuracy"], run.measured.num_examples
    low, high = run.measured.intervals["accuracy"]
    # The margin of a share, by the normal distribution.
    margin = 1.96 * math.sqrt(accuracy * (1 - accuracy) / rows)
    assert (high - low) / 2 == pytest.approx(margin, rel=0.25)
    assert (high + low) / 2 == pytest.approx(accuracy)
    assert run.errors.seen == run.errors.rows == rows
    (right, _), (_, right_too) = run.errors.confusion
    assert (right + right_too) / rows == pytest.approx(accuracy, rel=1e-6)
    assert "loss" not in run.measured.intervals


@mostly_swept("best", [None, "loss"], kept=["loss"])
def test_rows_are_those_of_the_exported_checkpoint_on_cores_too(tmp_path, caplog, best):
    cores = {"use_tpu": 1, "master": "emulated", "num_shards": 2, "iterations_per_loop": 5}
    execution = Execution.of_trainer(
        tmp_path,
        steps=_STEPS,
        eval_every_steps=10,
        best_metric=best,
        best_metric_mode=best and "min",
        export_to_tpu=0,
        **cores,
    )
    # As a backend has it, and as a pipeline that was compiled before there was a page.
    del execution.outputs["page"]
    if best:
        execution.outputs["page"] = [page := HtmlFile()]
        page.uri = str(tmp_path / "trainer" / "html")
    with caplog.at_level(logging.INFO, logger="absl"):
        execution.run()
    if best:
        written = pathlib.Path(execution.outputs["model_run"][0].uri, "run.html").read_bytes()
        assert pathlib.Path(page.uri).read_bytes() == written
    run = read_run_data(execution.outputs["model_run"][0].uri)
    # The logger that TFX's templates show.
    told = [each.getMessage() for each in caplog.records if each.name == "absl"]
    measured, step = run.measured.metrics, run.measured.global_step
    result = f"trained on 2 emulated TPU cores; the model of step {step} is {execution.serving_dir}"
    assert [line for line in told if line.startswith("Trainer: ")] == [
        f"Trainer: {result}",
        "Trainer: "
        + ", ".join(f"{name} {measured[name]:.4g}" for name in measured if name != "loss")
        + f" on {tfx_testdata.ROWS['eval']:,} rows",
        f"Trainer: the page is {execution.outputs['model_run'][0].uri}/run.html",
    ]
    (right, _), (_, right_too) = run.errors.confusion
    assert run.lineage.ran_on == "2 emulated TPU cores"
    assert run.errors.seen == run.measured.num_examples
    assert (right + right_too) / run.errors.seen == pytest.approx(
        run.measured.metrics["accuracy"], rel=1e-6
    )


def test_settings_that_differ_inputs_and_phases_are_there(trained, run):
    assert run.lineage.settings["eval_every_steps"] == "10"
    assert run.lineage.settings["train_steps"] == str(_STEPS)
    assert "tf_random_seed" not in run.lineage.settings
    examples = trained.inputs["examples"][0].uri
    assert run.lineage.inputs["examples"] == examples
    assert seconds_by_part(run.lineage).keys() == {
        "imports", "checks", "trace", "input", "steps", "evaluations", "exports", "serving check", "page", "rest",
    }  # fmt: skip
    assert min(run.lineage.phase_seconds.values()) >= 0
    assert run.lineage.ran_on == "this host"
    assert run.lineage.versions["tensorflow"] == tf.__version__
    model = pathlib.Path(small_model.__file__)
    assert run.lineage.source[model.name] == model.read_text("utf-8")
    assert not run.unread


def test_rows_code_and_data_are_there(trained, run):
    assert run.lineage.rows == {
        "training": _STEPS * trained.properties["train_batch_size"],
        "evaluation of the exported checkpoint": run.measured.num_examples,
    }
    module, _, digest = run.lineage.code.partition("@")
    assert module == trained.properties["module"]
    assert len(digest) >= 16
    assert run.data.splits == {"train": 3, "eval": 2}
    assert run.data.features[0].by_split["train"].mean == pytest.approx(4)


def test_the_page_is_an_artifact_of_its_own(trained):
    (page,) = trained.outputs["page"]
    written = pathlib.Path(page.uri, "run.html").read_bytes()
    assert written == pathlib.Path(trained.outputs["model_run"][0].uri, "run.html").read_bytes()
    assert page.type_name == "tfx_tpu_trainer.RunPage"


def test_other_statistics_do_not_make_another_training(tmp_path):
    execution = Execution.of_trainer(tmp_path)

    def digest():
        job = TrainJob.from_execution(
            execution.inputs,
            execution.outputs,
            execution.properties,
            read_fn_args=TpuTrainerExecutor()._GetFnArgs,
        )
        return TrainingIdentity.of(job).digest

    before = digest()
    execution.add_statistics(write_statistics(tmp_path / "data", **_DATA))
    assert digest() == before


def test_a_training_that_fails_says_where_it_stopped(tmp_path):
    execution = Execution.of_trainer(
        tmp_path, steps=_STEPS, params=json.dumps({"learning_rate": 1e38})
    )
    with pytest.raises(Exception, match=r"NaN|diverged") as error:
        execution.run()
    folder = execution.outputs["model_run"][0].uri
    run = read_run_data(folder)
    assert run.stopped.startswith(type(error.value).__name__)
    assert run.lineage.ran_on == "this host"
    assert "The training stopped" in _page(folder).text
    assert not os.listdir(execution.model.uri)


def test_a_page_that_cannot_be_written_costs_a_warning(tmp_path, caplog):
    execution = Execution.of_trainer(tmp_path, steps=2, export_to_tpu=0)
    # A folder is in the place of the page.
    os.makedirs(os.path.join(execution.outputs["model_run"][0].uri, "run.html", "taken"))
    with caplog.at_level(logging.WARNING):
        execution.run()
    assert "The page of this training could not be written: " in caplog.text
    assert read_eval_metrics(execution.model.uri) is not None
