from __future__ import annotations

import math
import os
import uuid

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_model_analysis as tfma
from tensorflow_model_analysis.experimental import dataframe

from tests.bad_input import row
from tests.components.evaluation import thresholds as t
from tfx_tpu_trainer._support import whole_files
from tfx_tpu_trainer.components.evaluation import (
    EvalMetrics,
    read_model_evaluation,
    write_model_evaluation,
)

_CANDIDATE = {"accuracy": np.float32(0.8), "loss": 1 / 3, "auc": math.nextafter(0.9, 1)}
_BASELINE = {"accuracy": 0.7, "loss": 0.1 + 0.2, "recall": 0.5}


def _metrics(overall):
    return EvalMetrics(overall=overall, global_step=10)


def _loaded(uri, model_name=None):
    [(slice_key, by_output)] = tfma.load_eval_result(uri, model_name=model_name).slicing_metrics
    assert slice_key == ()
    return {name: value["doubleValue"] for name, value in by_output[""][""].items()}


@pytest.fixture
def uri(tmp_path):
    return str(tmp_path / "evaluation" / "7")


def test_tfma_reads_back_every_bit(uri):
    write_model_evaluation(uri, _metrics(_CANDIDATE), model_location="/model/1")

    assert _loaded(uri) == {name: float(value) for name, value in _CANDIDATE.items()}
    assert tfma.load_eval_result(uri).model_location == "/model/1"
    [record] = tfma.load_metrics(uri)
    stored = {
        item.key.name: item.value.double_value.value for item in record.metric_keys_and_values
    }
    assert stored == _loaded(uri)


def test_baseline_and_differences_are_in_it(uri):
    write_model_evaluation(
        uri,
        _metrics(_CANDIDATE),
        baseline=_metrics(_BASELINE),
        model_location="/model/2",
        baseline_location="/model/1",
    )
    differences = {
        f"{name}_diff": float(_CANDIDATE[name]) - _BASELINE[name] for name in ("accuracy", "loss")
    }
    candidate = {name: float(value) for name, value in _CANDIDATE.items()}
    assert _loaded(uri, "candidate") == candidate | differences
    assert _loaded(uri) == _loaded(uri, "candidate")
    assert _loaded(uri, "baseline") == _BASELINE
    assert tfma.load_eval_result(uri, model_name="baseline").model_location == "/model/1"
    assert tfma.load_eval_result(uri, model_name="candidate").model_location == "/model/2"


def test_every_loader_of_tfma_takes_it(uri):
    write_model_evaluation(
        uri,
        _metrics(_CANDIDATE),
        eval_config=t.config(accuracy=t.value(0.5)),
        data_location="/data",
    )
    assert tfma.load_validation_result(uri).validation_ok
    assert list(tfma.load_plots(uri)) == []
    assert list(tfma.load_attributions(uri)) == []
    frame = dataframe.metrics_as_dataframes(tfma.load_metrics(uri)).double_value
    assert dict(zip(frame.metric_keys.name, frame.metric_values.double_value)) == _loaded(uri)
    assert tfma.load_eval_result(uri).data_location == "/data"
    assert tfma.view.render_slicing_metrics(tfma.load_eval_result(uri)) is not None


def test_files_are_the_stock_evaluators(uri):
    write_model_evaluation(uri, _metrics(_CANDIDATE))
    assert sorted(os.listdir(uri)) == [
        "attributions-00000-of-00001.tfrecord",
        "eval_config.json",
        "metrics-00000-of-00001.tfrecord",
        "plots-00000-of-00001.tfrecord",
        "validations.tfrecord",
    ]
    assert os.listdir(os.path.dirname(uri)) == ["7"]


def test_empty_folder_of_the_launcher_is_filled_and_a_retry_replaces(uri):
    os.makedirs(uri)
    for accuracy in (0.1, 0.2):
        write_model_evaluation(uri, _metrics({"accuracy": accuracy}))
    assert _loaded(uri) == {"accuracy": 0.2}


def test_other_file_systems():
    uri = "ram://evaluation/7"
    write_model_evaluation(uri, _metrics(_CANDIDATE), eval_config=t.config(loss=t.value(upper=1)))
    assert _loaded(uri)["loss"] == _CANDIDATE["loss"]
    assert tfma.load_validation_result(uri).validation_ok
    assert tf.io.gfile.exists(os.path.join(uri, "eval_config.json"))


def test_a_refused_config_writes_nothing(uri):
    with pytest.raises(ValueError, match="no bound"):
        write_model_evaluation(uri, _metrics(_CANDIDATE), eval_config=t.config(accuracy=t.value()))
    assert not os.path.exists(uri)


def test_read_gives_the_candidate(uri):
    write_model_evaluation(
        uri,
        _metrics(_CANDIDATE),
        eval_config=t.config(accuracy=t.change(0.0)),
        baseline=_metrics(_BASELINE),
    )
    read = read_model_evaluation(uri)
    assert dict(read.overall) == {name: float(value) for name, value in _CANDIDATE.items()}
    assert read.global_step is None


@row(
    "eval_metrics",
    "a ModelEvaluation in a bucket whose writer was killed before eval_config.json",
    "is incomplete",
    "no eval_config.json, which is written last",
)
def test_half_an_evaluation_in_a_bucket_is_not_read(refused, monkeypatch):
    uri = f"ram://{uuid.uuid4().hex}/7"
    write_model_evaluation(uri, _metrics(_CANDIDATE))
    tf.io.gfile.remove(os.path.join(uri, "eval_config.json"))
    monkeypatch.setattr(whole_files, "_MARKER_SECONDS", 0.0)
    with refused(FileNotFoundError):
        read_model_evaluation(uri)


def test_read_of_an_empty_folder_gives_none(tmp_path):
    assert read_model_evaluation(str(tmp_path)) is None
