from __future__ import annotations

import math

import ml_metadata as mlmd
import pytest
from ml_metadata.proto import metadata_store_pb2
from tfx.types import standard_artifacts

from tfx_tpu_trainer.evaluation import EvalMetrics, metric_properties, set_properties


def test_names_and_types():
    metrics = EvalMetrics(
        overall={"loss": 0.5, "accuracy": 1},
        global_step=3,
        num_examples=8,
        checkpoint="/run/model.ckpt-3",
        seconds=2.0,
    )
    assert metric_properties(metrics) == {
        "eval_loss": 0.5,
        "eval_accuracy": 1.0,
        "global_step": 3,
        "num_examples": 8,
        "evaluated_checkpoint": "/run/model.ckpt-3",
        "evaluation_seconds": 2.0,
    }


def test_what_is_unknown_is_left_out():
    metrics = EvalMetrics(overall={"loss": 0.5}, global_step=None)
    assert metric_properties(metrics) == {"eval_loss": 0.5}


def test_mlmd_keeps_them_not_finite_ones_too():
    overall = {"loss": math.nan, "perplexity": math.inf, "accuracy": 1 / 3}
    artifact = standard_artifacts.ModelEvaluation()
    artifact.uri = "/evaluation/1"
    set_properties(artifact, metric_properties(EvalMetrics(overall=overall, global_step=3)))

    connection = metadata_store_pb2.ConnectionConfig()
    connection.fake_database.SetInParent()
    store = mlmd.MetadataStore(connection)
    artifact.type_id = store.put_artifact_type(artifact.artifact_type)
    [artifact_id] = store.put_artifacts([artifact.mlmd_artifact])

    [stored] = store.get_artifacts_by_id([artifact_id])
    # MLMD writes doubles into its SQL with six digits.
    assert stored.custom_properties["eval_accuracy"].double_value == pytest.approx(1 / 3, rel=1e-6)
    assert stored.custom_properties["eval_loss"].string_value == "NaN"
    assert stored.custom_properties["eval_perplexity"].string_value == "Infinity"
    assert stored.custom_properties["global_step"].int_value == 3
