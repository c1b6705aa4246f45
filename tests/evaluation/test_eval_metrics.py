from __future__ import annotations

import json
import math
import os
from fractions import Fraction

import ml_metadata as mlmd
import numpy as np
import pytest
from ml_metadata.proto import metadata_store_pb2
from tfx.types import standard_artifacts

from tfx_tpu_trainer.engine.evaluating.evaluation import EvalResult
from tfx_tpu_trainer.evaluation import (
    EvalMetrics,
    metric_properties,
    read_eval_metrics,
    set_properties,
    write_eval_metrics,
)


def _result(metrics, *, loss_by_rows=0.25):
    return EvalResult(
        metrics=metrics,
        loss_by_rows=loss_by_rows,
        num_examples=7,
        global_step=12,
        checkpoint_path="/run/model.ckpt-12",
        seconds=1.5,
    )


def test_file_gives_back_every_bit(tmp_path):
    metrics = EvalMetrics(
        overall={
            "loss": 1 / 3,
            "accuracy": np.float32(0.1),
            "auc": np.nextafter(0.5, 1),
            "tiny": 5e-324,
            "count": np.int64(2**53),
        },
        global_step=1000,
        num_examples=15002,
        checkpoint="/run/model.ckpt-1000",
        seconds=0.1 + 0.2,
    )
    path = write_eval_metrics(str(tmp_path / "model"), metrics)

    assert os.path.basename(path) == "eval_metrics.json"
    assert read_eval_metrics(str(tmp_path / "model")) == metrics
    # A float32 is a fraction with denominator 2 ** k, which a Python float holds exactly.
    assert Fraction(metrics.overall["accuracy"]) == Fraction(13421773, 2**27)
    assert os.listdir(tmp_path / "model") == ["eval_metrics.json"]


def test_values_that_are_not_finite_are_words_in_strict_json(tmp_path):
    overall = {"loss": math.nan, "up": math.inf, "down": -math.inf}
    path = write_eval_metrics(str(tmp_path), EvalMetrics(overall=overall, global_step=1))

    def refuse(token):
        raise AssertionError(f"{token} is not JSON")

    with open(path) as file:
        document = json.load(file, parse_constant=refuse)
    assert document["overall"] == {"loss": "NaN", "up": "Infinity", "down": "-Infinity"}
    read = read_eval_metrics(str(tmp_path)).overall
    assert math.isnan(read["loss"])
    assert (read["up"], read["down"]) == (math.inf, -math.inf)


def test_writing_again_replaces(tmp_path):
    for step in (1, 2):
        write_eval_metrics(str(tmp_path), EvalMetrics(overall={"loss": step}, global_step=step))
    assert read_eval_metrics(str(tmp_path)).global_step == 2


def test_model_without_the_file_has_no_metrics(tmp_path):
    assert read_eval_metrics(str(tmp_path)) is None
    assert read_eval_metrics(str(tmp_path / "absent")) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "can't be read"),
        ("[]", "can't be read"),
        ('{"version": 1}', "has no 'seconds'"),
        ('{"version": 99}', "upgrade tfx_tpu_trainer"),
        (
            (
                '{"version": 1, "global_step": 1, "num_examples": 1, "checkpoint": null, "seconds": 1, '
                '"overall": {"loss": "low"}}'
            ),
            "'low' is not a number",
        ),
    ],
)
def test_broken_file_is_named(tmp_path, text, says):
    (tmp_path / "eval_metrics.json").write_text(text)
    with pytest.raises(ValueError, match=says) as error:
        read_eval_metrics(str(tmp_path))
    assert str(tmp_path / "eval_metrics.json") in str(error.value)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (np.zeros(3), r"metric 'm' has shape \(3,\)"),
        ([[1.0]], r"metric 'm' has shape \(1, 1\)"),
        (b"high", "metric 'm' is b'high'"),
        (None, "metric 'm' is None"),
    ],
)
def test_only_scalar_numbers_are_metrics(value, says):
    with pytest.raises(ValueError, match=says):
        EvalMetrics(overall={"m": value}, global_step=1)


def test_no_metric_is_refused():
    with pytest.raises(ValueError, match="holds no metric"):
        EvalMetrics(overall={}, global_step=1)


def test_metrics_can_not_be_changed_afterwards():
    metrics = EvalMetrics(overall={"loss": 1.0}, global_step=1)
    with pytest.raises(TypeError):
        metrics.overall["loss"] = 0.0


def test_from_result_takes_the_loss_by_rows(caplog):
    result = _result(
        {"accuracy": np.float32(0.5), "loss": 0.75, "global_step": 12, "confusion": np.eye(2)}
    )
    metrics = EvalMetrics.from_result(result)

    assert dict(metrics.overall) == {"accuracy": 0.5, "loss": result.loss_by_rows}
    assert (metrics.global_step, metrics.num_examples) == (12, 7)
    assert (metrics.checkpoint, metrics.seconds) == ("/run/model.ckpt-12", 1.5)
    assert "'confusion' has shape (2, 2)" in caplog.text


def test_from_result_without_rows_takes_the_mean_loss():
    metrics = EvalMetrics.from_result(_result({"loss": 0.75}, loss_by_rows=math.nan))
    assert metrics.overall["loss"] == 0.75


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
