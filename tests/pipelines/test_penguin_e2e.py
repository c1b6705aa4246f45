"""The penguin pipeline, run as a user does, in both forms: `build_model` in TpuTrainer, `run_fn` in the Trainer."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_model_analysis as tfma

from pipelines.penguin.transform.preprocessing import LABEL
from tests.pipeline_runs import PipelineRun, completed, run_local
from tfx_tpu_trainer.components.evaluation import read_learning_curve
from tfx_tpu_trainer.components.evaluation._learning_curve import Goal
from tfx_tpu_trainer.serving import load_serving
from tfx_tpu_trainer.workbench.project.metadata import State

pytestmark = [pytest.mark.e2e, pytest.mark.matrix]

ACCURACY = "sparse_categorical_accuracy"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[PipelineRun, PipelineRun]:
    """TpuTrainer's run, on two emulated cores, and the stock Trainer's, under one root."""
    root = tmp_path_factory.mktemp("penguin") / "root"
    cores = ["trainer.use_tpu=true", "trainer.master=emulated", "trainer.num_shards=2"]
    ours = completed(run_local("penguin", root, *cores))
    return ours, completed(run_local("penguin", root, "stock=true"))


def served_accuracy(run: PipelineRun) -> float:
    """The share of the raw eval rows that the pushed model gets right; requests have no species."""
    folder = run.output_folder("CsvExampleGen", "examples") / "Split-eval"
    files = [str(path) for path in folder.iterdir()]
    whole = list(tf.data.TFRecordDataset(files, compression_type="GZIP").as_numpy_iterator())
    requests = []
    for record in whole:
        row = tf.train.Example.FromString(record)
        del row.features.feature[LABEL]
        requests.append(row.SerializeToString())
    signatures = load_serving(str(run.report.pushed)).signatures
    probabilities = signatures["serving_default"](examples=tf.constant(requests))["probabilities"]
    species = signatures["transform_features"](examples=tf.constant(whole))[LABEL]
    return float(np.mean(probabilities.numpy().argmax(axis=1) == species.numpy()[:, 0]))


def test_both_forms_train_evaluate_bless_and_push_the_same_rows(runs):
    ours, stock = runs
    assert {node for node in stock.statuses if stock.statuses[node].state is State.CACHED} == {
        *("CsvExampleGen", "StatisticsGen", "SchemaGen", "Transform")
    }
    result = tfma.load_eval_result(str(stock.output_folder("Evaluator", "evaluation")))
    ((_, metrics),) = result.slicing_metrics
    measured = {
        "ours": ours.report.eval_metrics[ACCURACY],
        "stock": metrics[""][""][ACCURACY]["doubleValue"],
    }
    for run, accuracy in zip(runs, measured.values()):
        assert run.report.blessed is True
        assert accuracy == pytest.approx(served_accuracy(run), abs=1e-6)
    assert min(measured.values()) > 0.9
    # Six of the 110 eval rows.
    assert measured["ours"] == pytest.approx(measured["stock"], abs=0.06)


def test_the_callback_became_the_goal_and_the_model_answers_with_classes(runs):
    ours, _ = runs
    assert ours.report.prediction is not None
    assert set(ours.report.prediction.outputs) == {"probabilities", "classes"}
    assert ours.report.prediction.withheld == {LABEL: "Adelie"}
    curve = read_learning_curve(str(ours.output_folder("TpuTrainer", "model")))
    assert curve is not None and curve.goal == Goal(metric="loss", mode="min", patience=2)
