"""Runs unedited taxi modules for TFX's Estimator executor between the stock components."""

from __future__ import annotations

import glob
import json
import pathlib
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_model_analysis as tfma
from ml_metadata import MetadataStore
from tfx import v1 as tfx

from tests import tfx_testdata
from tests.components.trainer.legacy import taxi
from tests.conftest import REPOSITORY
from tests.programs.fetching import package_folder_or_skip
from tests.tfx_importers import importers
from tests.tfx_testdata import LABEL
from tfx_tpu_trainer import compat
from tfx_tpu_trainer.components._tfx_private import GenericExecutor
from tfx_tpu_trainer.components.evaluation import read_eval_metrics

pytestmark = [pytest.mark.e2e, pytest.mark.sweep]

# All full batches of 40 rows of the eval split, which the module's input repeats without an end.
EVAL_STEPS = tfx_testdata.ROWS["eval"] // 40
assert EVAL_STEPS == 127


def _listing():
    page = (REPOSITORY / "docs" / "legacy.md").read_text()
    (listing,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    return listing


class _Run:
    """One run of importers, the trainer, the Evaluator and the Pusher."""

    def __init__(self, folder, module_file):
        self.folder, self.pushed = folder, folder / "pushed"
        nodes = importers()
        nodes["raw"] = tfx.dsl.Importer(
            source_uri=tfx_testdata.RAW_EXAMPLES,
            artifact_type=tfx.types.standard_artifacts.Examples,
            properties={"split_names": json.dumps(["train", "eval"])},
        ).with_id("raw_examples")
        outputs = {name: node.outputs["result"] for name, node in nodes.items()}
        transform = {**outputs, "transformed_examples": outputs["examples"]}
        names = {
            "module_file": module_file,
            "example_gen": SimpleNamespace(outputs={"examples": outputs["raw"]}),
            "schema_gen": SimpleNamespace(outputs=outputs),
            "transform": SimpleNamespace(outputs=transform),
        }
        exec(_listing(), names)
        trainer, evaluator = names["trainer"], names["evaluator"]
        pusher = tfx.components.Pusher(
            model=trainer.outputs["model"],
            model_blessing=evaluator.outputs["blessing"],
            push_destination=tfx.proto.PushDestination(
                filesystem=tfx.proto.PushDestination.Filesystem(base_directory=str(self.pushed))
            ),
        )
        connection = tfx.orchestration.metadata.sqlite_metadata_connection_config(
            str(folder / "mlmd.db")
        )
        tfx.orchestration.LocalDagRunner().run(
            tfx.dsl.Pipeline(
                pipeline_name="legacy",
                pipeline_root=str(folder / "root"),
                components=[*nodes.values(), trainer, evaluator, pusher],
                metadata_connection_config=connection,
            )
        )
        self.store = MetadataStore(connection)

    def output(self, node, key):
        (path,) = glob.glob(str(self.folder / "root" / node / key / "*"))
        return pathlib.Path(path)


def _own_module():
    return pathlib.Path(taxi.__file__)


def _module_of_tfx():
    return (
        package_folder_or_skip("tfx==1.15.1") / "tfx/examples/chicago_taxi_pipeline/taxi_utils.py"
    )


@pytest.mark.parametrize("module", [_own_module, _module_of_tfx], ids=["own", "tfx-1.15.1"])
def test_a_legacy_taxi_module_is_trained_evaluated_and_pushed(tmp_path, module):
    module_file = tmp_path / "module" / "taxi_utils.py"
    module_file.parent.mkdir()
    shutil.copy(module(), module_file)
    run = _Run(tmp_path, str(module_file))
    model_folder = run.output("TpuTrainer", "model")
    trained = read_eval_metrics(str(model_folder))
    assert trained.global_step == 200 and trained.num_examples == 40 * EVAL_STEPS
    result = tfma.load_eval_result(str(run.output("Evaluator", "evaluation")))
    by_slice = {
        key: {name: value["doubleValue"] for name, value in metrics[""][""].items()}
        for key, metrics in result.slicing_metrics
    }
    overall = by_slice.pop(())
    assert overall["example_count"] == tfx_testdata.ROWS["eval"]
    # The module's input shuffles, and repeats the rows before all were there.
    assert overall["binary_accuracy"] == pytest.approx(trained.overall["accuracy"], abs=0.005)
    assert overall["auc"] == pytest.approx(trained.overall["auc"], abs=0.02)
    assert len(by_slice) == 24
    counts = sum(metrics["example_count"] for metrics in by_slice.values())
    assert counts == tfx_testdata.ROWS["eval"]
    assert run.output("Evaluator", "blessing").joinpath("BLESSED").exists()
    (model,) = run.store.get_artifacts_by_type("Model")
    assert model.custom_properties["global_step"].int_value == 200
    accuracy = model.custom_properties["eval_accuracy"].double_value
    assert accuracy == pytest.approx(trained.overall["accuracy"])

    (check,) = json.loads(model_folder.joinpath("serving_check.json").read_text())["checks"]
    assert check["outcome"] == "passed" and "predict['probabilities']" in check["detail"]
    (version,) = run.pushed.iterdir()
    assert version.joinpath("assets.extra", "tf_serving_warmup_requests").stat().st_size > 0
    pushed = tf.saved_model.load(str(version), tags=["serve"]).signatures
    rows = tf.constant(_raw_rows())
    scores = pushed["serving_default"](rows)["scores"].numpy()
    labels = np.ravel(pushed["transform_features"](rows)["tips_xf"])
    assert scores.sum(axis=1) == pytest.approx(1.0)
    assert overall["binary_accuracy"] == pytest.approx(np.mean((scores[:, 1] > 0.5) == labels))
    # TFMA counts over 10,000 thresholds: scores between two of them are equal to it.
    seen = np.floor(scores[:, 1] * 9_999)
    assert overall["auc"] == pytest.approx(_auc(seen, labels), abs=1e-3)


def _raw_rows():
    paths = sorted(pathlib.Path(tfx_testdata.RAW_EXAMPLES, "Split-eval").iterdir())
    data = tf.data.TFRecordDataset([str(path) for path in paths], compression_type="GZIP")
    return [row.numpy() for row in data]


def _auc(scores, labels):
    """Returns how often a positive row has the higher score; a tie counts half."""
    positive, negative = scores[labels == 1][:, None], scores[labels == 0][None, :]
    return np.mean((positive > negative) + 0.5 * (positive == negative))


@pytest.mark.parametrize(
    "module",
    [
        "examples/chicago_taxi_pipeline/taxi_utils.py",
        "examples/bigquery_ml/taxi_utils_bqml.py",
        # It has a run_fn in addition to its trainer_fn.
        "components/testdata/module_file/trainer_module.py",
    ],
)
def test_a_module_of_tfx_1_15_1(execution, module):
    path = package_folder_or_skip("tfx==1.15.1") / "tfx" / module
    trained = execution(
        trainer_fn=None, module_file=str(path), steps=5, eval_args='{"num_steps": 3}'
    )
    trained.run()
    metrics = read_eval_metrics(trained.model.uri)
    assert metrics.global_step == 5 and metrics.num_examples == 3 * 40
    assert {"accuracy", "auc", "label/mean", "prediction/mean"} <= set(metrics.overall)
    signatures = tf.saved_model.load(trained.serving_dir, tags=["serve"]).signatures
    assert LABEL in signatures["transform_features"].structured_outputs
    assert signatures["predict"].structured_outputs["logistic"].shape.as_list() == [None, 1]


def test_a_run_fn_that_does_it_all_itself_in_the_stock_trainer(execution):
    path = (
        package_folder_or_skip("tfx==1.15.1")
        / "tfx/components/testdata/module_file/trainer_module.py"
    )
    trained = execution(
        trainer_fn=None, module_file=str(path), steps=5, eval_args='{"num_steps": 3}'
    )
    with compat.install():
        GenericExecutor().Do(trained.inputs, trained.outputs, trained.properties)
    predict = tf.saved_model.load(trained.serving_dir, tags=["serve"]).signatures["predict"]
    assert predict.structured_outputs["logistic"].shape.as_list() == [None, 1]
    folder = f"{trained.model.uri}/Format-TFMA"
    signatures = tf.saved_model.load(folder, tags=["serve"]).signatures
    assert LABEL in signatures["transform_features"].structured_outputs
