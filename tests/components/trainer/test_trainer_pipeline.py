"""Runs the trainer in LocalDagRunner's pipelines, with MLMD, and compares it with TFX's own Evaluator."""

from __future__ import annotations

import glob
import json
import logging
import pathlib
import shutil
from pathlib import Path

import pytest
import tensorflow_model_analysis as tfma
from ml_metadata import MetadataStore
from ml_metadata.proto import metadata_store_pb2
from tfx import v1 as tfx

from pipelines.taxi import pipeline as taxi
from pipelines.taxi.config import Config
from tests import tfx_testdata
from tests.components.trainer import interrupted_model, small_model
from tests.components.trainer.execution import Execution
from tests.conftest import REPOSITORY
from tests.pipeline_runs import PipelineRun
from tests.tfx_importers import importers
from tfx_tpu_trainer.components import TpuTrainer, TpuTrainerExecutor
from tfx_tpu_trainer.components._tfx_private import ExecutorClassSpec
from tfx_tpu_trainer.components.evaluation import read_eval_metrics
from tfx_tpu_trainer.serving import load_serving
from tfx_tpu_trainer.workbench.project.config_file import load_config

pytestmark = pytest.mark.e2e


class _Runs:
    """Runs of one pipeline, a trainer on the tfx wheel's data, in a folder."""

    def __init__(self, folder):
        self.folder = folder

    def run(self, make_trainer, **arguments):
        # Nodes belong to one pipeline: each run makes its own.
        nodes = importers()
        inputs = {name: node.outputs["result"] for name, node in nodes.items()}
        tfx.orchestration.LocalDagRunner().run(
            tfx.dsl.Pipeline(
                pipeline_name="trainer",
                pipeline_root=str(self.folder / "root"),
                components=[*nodes.values(), make_trainer(**inputs, **arguments)],
                metadata_connection_config=self._connection(),
                enable_cache=True,
            )
        )

    def _connection(self):
        return tfx.orchestration.metadata.sqlite_metadata_connection_config(
            str(self.folder / "mlmd.db")
        )

    def models(self):
        return glob.glob(str(self.folder / "root" / "*" / "model" / "*" / "Format-Serving"))

    def store(self):
        return MetadataStore(self._connection())

    def trainer_states(self):
        state = metadata_store_pb2.Execution.State
        store = self.store()
        (kind,) = [t for t in store.get_execution_types() if t.name.endswith("Trainer")]
        return [state.Name(e.last_known_state) for e in store.get_executions_by_type(kind.name)]


def test_a_module_file_runtime_parameters_the_cache_a_failure_and_mlmd(tmp_path):
    runs = _Runs(tmp_path)
    module_file = tmp_path / "module" / "model.py"
    module_file.parent.mkdir()
    module_file.write_text(pathlib.Path(small_model.__file__).read_text())
    runtime = tfx.dsl.experimental.RuntimeParameter
    arguments = {
        "module_file": str(module_file),
        "label_key": runtime("label", ptype=str, default=tfx_testdata.LABEL),
        "params": {"width": 2},
        "train_args": tfx.proto.TrainArgs(num_steps=3),
        "train_batch_size": runtime("rows", ptype=int, default=32),
        "serving_check": "off",
        "export_to_tpu": False,
    }
    runs.run(TpuTrainer, **arguments)
    (serving,) = runs.models()
    assert load_serving(serving).signatures["serving_default"]
    (model,) = runs.store().get_artifacts_by_type("Model")
    assert model.custom_properties["global_step"].int_value == 3
    assert model.custom_properties["num_examples"].int_value == tfx_testdata.ROWS["eval"]
    assert 0 < model.custom_properties["eval_accuracy"].double_value <= 1

    runs.run(TpuTrainer, **arguments)
    assert runs.trainer_states() == ["COMPLETE", "CACHED"]
    # An edit of the module makes another wheel, which no cache entry has. This one fails, and leaves no model.
    module_file.write_text(module_file.read_text() + "\nparams = 3\n")
    with pytest.raises(Exception, match="params of module 'model' is 3; make it a dict"):
        runs.run(TpuTrainer, **arguments)
    assert runs.trainer_states() == ["COMPLETE", "CACHED", "FAILED"]
    assert runs.models() == [serving]


@pytest.mark.sweep
def test_an_edit_of_an_import_path_module_is_no_cache_hit(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    module_file = tmp_path / "cached_model.py"
    module_file.write_text(f"from {small_model.__name__} import model_fn, params\n")
    runs = _Runs(tmp_path)
    arguments = {
        "module": "cached_model",
        "label_key": tfx_testdata.LABEL,
        "train_args": tfx.proto.TrainArgs(num_steps=1),
        "serving_check": "off",
        "export_to_tpu": False,
    }
    runs.run(TpuTrainer, **arguments)
    runs.run(TpuTrainer, **arguments)
    module_file.write_text(module_file.read_text() + "params = {**params, 'width': 2}\n")
    runs.run(TpuTrainer, **arguments)
    assert runs.trainer_states() == ["COMPLETE", "CACHED", "COMPLETE"]


# tests/components/trainer/test_resume.py and the compiled run of tests/engines/containers continue from theirs.
@pytest.mark.sweep
def test_a_run_after_a_failure_goes_on_from_the_checkpoint(tmp_path, monkeypatch, caplog):
    machine_is_gone = tmp_path / "machine_is_gone"
    machine_is_gone.write_text("train")
    monkeypatch.setenv(interrupted_model.FAILS, str(machine_is_gone))
    runs = _Runs(tmp_path)
    arguments = {
        "module": interrupted_model.__name__,
        "label_key": tfx_testdata.LABEL,
        "train_args": tfx.proto.TrainArgs(num_steps=20),
        "save_checkpoints_steps": 10,
        "serving_check": "off",
        "export_to_tpu": False,
    }
    with pytest.raises(ConnectionError):
        runs.run(TpuTrainer, **arguments)
    # TFX removes a failed execution's artifacts; the checkpoints are next to them.
    assert glob.glob(str(tmp_path / "root" / "TpuTrainer" / "model_run" / "*")) == []
    (folder,) = (tmp_path / "root" / "TpuTrainer" / "checkpoints").iterdir()
    machine_is_gone.unlink()
    with caplog.at_level(logging.INFO):
        runs.run(TpuTrainer, **arguments)
    assert f"Resuming from the checkpoint of step 10 in {folder}" in caplog.text
    assert runs.trainer_states() == ["FAILED", "COMPLETE"]
    assert not folder.exists()


@pytest.mark.sweep
def test_the_executor_runs_in_the_stock_trainer(tmp_path):
    runs = _Runs(tmp_path)
    runs.run(
        tfx.components.Trainer,
        run_fn=f"{small_model.__name__}.model_fn",
        train_args=tfx.proto.TrainArgs(num_steps=3),
        eval_args=tfx.proto.EvalArgs(),
        custom_config={"tpu_trainer": {"label_key": tfx_testdata.LABEL}},
        custom_executor_spec=ExecutorClassSpec(TpuTrainerExecutor),
    )
    assert runs.trainer_states() == ["COMPLETE"]
    (serving,) = runs.models()
    assert load_serving(serving).signatures["serving_default"]


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
    # Trained already: only the evaluation is left.
    model_run = taxi_run.output_folder("TpuTrainer", "model_run")
    shutil.copytree(model_run, execution.outputs["model_run"][0].uri, dirs_exist_ok=True)
    execution.run()

    ours = {one.key: one for one in read_eval_metrics(execution.model.uri).slices}
    stock = _stock(taxi_run)
    assert set(ours) == set(stock) - {()}
    for key, one in ours.items():
        assert one.num_examples == stock[key]["example_count"]
        assert one.metrics["accuracy"] == pytest.approx(stock[key]["binary_accuracy"], abs=1e-4)
