"""Modules of TFX 1.15.1's own wheel, the last that had the Estimator executor, as they stand."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.programs.fetching import package_folder_or_skip
from tests.tfx_testdata import LABEL
from tfx_tpu_trainer import compat
from tfx_tpu_trainer.components.evaluation import read_eval_metrics
from tfx_tpu_trainer.components.trainer.tfx_private import GenericExecutor

pytestmark = [pytest.mark.e2e, pytest.mark.sweep]


@pytest.mark.parametrize(
    "module",
    [
        "examples/chicago_taxi_pipeline/taxi_utils.py",
        "examples/bigquery_ml/taxi_utils_bqml.py",
        # Has a run_fn beside its trainer_fn.
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
