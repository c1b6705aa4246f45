"""Runs the trainer in LocalDagRunner's pipelines, with MLMD, and compares it with TFX's own Evaluator."""

from __future__ import annotations

import glob
import json
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
from tests.components.trainer import small_model
from tests.components.trainer.execution import Execution
from tests.conftest import REPOSITORY
from tests.pipeline_runs import PipelineRun
from tests.tfx_importers import importers
from tfx_tpu_trainer.components import TpuTrainer
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


def _stock(run: PipelineRun) -> dict:
    """The Evaluator's metrics by slice."""
    result = tfma.load_eval_result(str(run.output_folder("Evaluator", "evaluation")))
    return {
        key: {name: value["doubleValue"] for name, value in metrics[""][""].items()}
        for key, metrics in result.slicing_metrics
    }


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
