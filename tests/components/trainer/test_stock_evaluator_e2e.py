"""TFX's Evaluator and our eval_metrics, on the same model and data of the taxi pipeline."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tensorflow_model_analysis as tfma

from pipelines.taxi import pipeline as taxi
from pipelines.taxi.config import Config
from tests.components.trainer.execution import Execution
from tests.conftest import REPOSITORY
from tests.pipeline_runs import PipelineRun
from tfx_tpu_trainer.components.evaluation import read_eval_metrics
from tfx_tpu_trainer.workbench.project.config_file import load_config

pytestmark = pytest.mark.e2e


def _stock(run: PipelineRun) -> dict:
    """The Evaluator's metrics by slice."""
    result = tfma.load_eval_result(str(run.output_folder("Evaluator", "evaluation")))
    return {
        key: {name: value["doubleValue"] for name, value in metrics[""][""].items()}
        for key, metrics in result.slicing_metrics
    }


def test_both_agree_on_the_whole_split(taxi_run: PipelineRun) -> None:
    ours = read_eval_metrics(str(taxi_run.output_folder("TpuTrainer", "model")))
    stock = _stock(taxi_run)[()]
    assert ours.num_examples == stock["example_count"]
    assert ours.overall["accuracy"] == pytest.approx(stock["binary_accuracy"], abs=1e-4)
    # Trapezoids below the curve: 200 thresholds here, 10,000 there.
    assert ours.overall["auc"] == pytest.approx(stock["auc"], abs=5e-4)


@pytest.mark.sweep
def test_both_agree_on_slices_of_a_raw_feature(taxi_run: PipelineRun, tmp_path: Path) -> None:
    config = load_config(Config, REPOSITORY / "pipelines" / "taxi" / "config.yaml")
    execution = Execution.of_trainer(
        tmp_path,
        steps=config.trainer.train_steps,
        module=config.trainer.module,
        label_key=config.trainer.label_key,
        params=json.dumps(taxi.model_params(config)),
        train_batch_size=config.trainer.train_batch_size,
        slicing_specs='[{"feature_keys": ["payment_type"]}]',
        export_to_tpu=0,
        serving_check="off",
    )
    for key, node, output in (
        ("examples", "Transform", "transformed_examples"),
        ("transform_graph", "Transform", "transform_graph"),
        ("schema", "SchemaGen", "schema"),
    ):
        execution.inputs[key][0].uri = str(taxi_run.output_folder(node, output))
    execution.add_raw_examples()
    raw = execution.inputs["raw_examples"][0]
    raw.uri = str(taxi_run.output_folder("CsvExampleGen", "examples"))
    # Trained already: nothing but the evaluation is left to do.
    model_run = taxi_run.output_folder("TpuTrainer", "model_run")
    shutil.copytree(model_run, execution.outputs["model_run"][0].uri, dirs_exist_ok=True)
    execution.run()

    ours = {one.key: one for one in read_eval_metrics(execution.model.uri).slices}
    stock = _stock(taxi_run)
    assert set(ours) == set(stock) - {()}
    for key, one in ours.items():
        assert one.num_examples == stock[key]["example_count"]
        assert one.metrics["accuracy"] == pytest.approx(stock[key]["binary_accuracy"], abs=1e-4)
