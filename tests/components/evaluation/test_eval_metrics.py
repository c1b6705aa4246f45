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

from tests.bad_input import case, row
from tfx_tpu_trainer.components.evaluation import (
    EvalMetrics,
    metric_properties,
    read_eval_metrics,
    set_properties,
    write_eval_metrics,
)
from tfx_tpu_trainer.estimator._engine.evaluating.evaluation import EvalResult


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


_SOUND = {
    "version": 1,
    "global_step": 1,
    "num_examples": 1,
    "checkpoint": None,
    "seconds": 1,
    "overall": {"loss": 0.5},
}


def _unreadable(given, content, *says):
    content = content if isinstance(content, bytes) else json.dumps(content).encode()
    says = "eval_metrics.json can't be read: ", *says, "restore the file that its trainer wrote"
    return case("eval_metrics", given, *says, values=content)


def _with(**changed):
    return {**_SOUND, **changed}


@pytest.mark.parametrize(
    "content",
    [
        _unreadable("an empty file", b"", "it is not valid JSON, "),
        _unreadable("a file that was cut off", b'{"version": 1', "it is not valid JSON, "),
        _unreadable(
            "bytes that are not text", b'{"a": "\xff"}', "it is not valid JSON, 'utf-8' codec can't"
        ),
        _unreadable("JSON nested 100,000 deep", b"[" * 100_000, "it is JSON nested too deeply"),
        _unreadable("a list", [], "it contains a list instead of an object"),
        _unreadable("no version", {}, "its version is None instead of a number"),
        _unreadable(
            "a version that is a text", _with(version="1"), "its version is '1' instead of"
        ),
        _unreadable(
            "a newer version", _with(version=99), "its version is 99", "upgrade tfx_tpu_trainer"
        ),
        _unreadable("nothing but a version", {"version": 1}, "it has no '"),
        _unreadable("no metric", _with(overall={}), "EvalMetrics is empty"),
        _unreadable(
            "metrics in a list", _with(overall=[1]), "its metrics are a list instead of an"
        ),
        _unreadable(
            "a metric that is a text",
            _with(overall={"loss": "low"}),
            "metric 'loss': 'low' is not a num",
        ),
        _unreadable(
            "a metric that is null", _with(overall={"auc": None}), "metric 'auc': None is not a"
        ),
        _unreadable(
            "`10**400` as a metric",
            _with(overall={"auc": 10**400}),
            "metric 'auc': a number of more than 308 digits is not a metric",
        ),
        _unreadable(
            "`num_examples` of -7",
            _with(num_examples=-7),
            "num_examples is -7, which is not a count",
        ),
        _unreadable(
            "a `global_step` that is a text",
            _with(global_step="one"),
            "global_step is 'one', which is not a count",
        ),
        _unreadable(
            "a `global_step` of half a step",
            _with(global_step=0.5),
            "global_step is 0.5, which is no",
        ),
        _unreadable(
            "`seconds` below 0", _with(seconds=-1.5), "seconds is -1.5, which is not a duration"
        ),
        _unreadable(
            "a checkpoint that is a number", _with(checkpoint=3), "checkpoint is 3, which is no"
        ),
        _unreadable("a slice without a name", _with(slices=[{"metrics": {}}]), "it has no 'slice'"),
    ],
)
def test_broken_file_is_named(tmp_path, content, refused):
    (tmp_path / "eval_metrics.json").write_bytes(content)
    with refused(ValueError) as error:
        read_eval_metrics(str(tmp_path))
    assert str(tmp_path / "eval_metrics.json") in str(error.value)


@row(
    "eval_metrics",
    "a folder `eval_metrics.json`",
    "eval_metrics.json can't be read: ",
    "Is a directory",
)
def test_a_folder_in_place_of_the_file_is_named(tmp_path, refused):
    (tmp_path / "eval_metrics.json").mkdir()
    with refused(ValueError):
        read_eval_metrics(str(tmp_path))


@pytest.mark.parametrize(
    "value",
    [
        case("eval_metrics", f"a metric that {given}", f"metric 'm' {says}", but, values=value)
        for given, value, says, but in (
            ("is a vector", np.zeros(3), "has shape (3,)", "let metric_fn return a scalar"),
            ("is a matrix", [[1.0]], "has shape (1, 1)", "or one metric for each element"),
            ("is a text", b"high", "is b'high' of type", "only numbers can be recorded"),
            ("is None", None, "is None of type", "only numbers can be recorded"),
        )
    ],
)
def test_only_scalar_numbers_are_metrics(value, refused):
    with refused(ValueError):
        EvalMetrics(overall={"m": value}, global_step=1)


@row(
    "eval_metrics",
    "an evaluation without any metric",
    "EvalMetrics is empty: the evaluation returned no metric, not even the loss",
)
def test_no_metric_is_refused(refused):
    with refused(ValueError):
        EvalMetrics(overall={}, global_step=1)


def test_metrics_can_not_be_changed_afterwards():
    metrics = EvalMetrics(overall={"loss": 1.0}, global_step=1)
    with pytest.raises(TypeError):
        metrics.overall["loss"] = 0.0


def test_from_result_takes_both_losses(caplog):
    result = _result(
        {"accuracy": np.float32(0.5), "loss": 0.75, "global_step": 12, "confusion": np.eye(2)}
    )
    metrics = EvalMetrics.from_result(result)

    assert dict(metrics.overall) == {"accuracy": 0.5, "loss": 0.75, "loss_by_rows": 0.25}
    assert (metrics.global_step, metrics.num_examples) == (12, 7)
    assert (metrics.checkpoint, metrics.seconds) == ("/run/model.ckpt-12", 1.5)
    assert "'confusion' has shape (2, 2)" in caplog.text


def test_from_result_without_rows_has_no_loss_by_rows():
    metrics = EvalMetrics.from_result(_result({"loss": 0.75}, loss_by_rows=math.nan))
    assert dict(metrics.overall) == {"loss": 0.75}


def test_a_metric_of_that_name_is_the_models_own():
    metrics = EvalMetrics.from_result(_result({"loss": 0.75, "loss_by_rows": 9.0}))
    assert dict(metrics.overall) == {"loss": 0.75, "loss_by_rows": 9.0}


@pytest.mark.parametrize("name", ["loss", "loss_by_rows"])
def test_either_loss_tells_that_a_model_has_diverged(name):
    metrics = EvalMetrics(overall={"auc": math.nan, name: math.nan}, global_step=1)
    assert metrics.diverged == (name,)


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
