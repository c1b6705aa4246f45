"""Warm-up requests as TensorFlow Serving will read them."""

from __future__ import annotations

import os
import shutil

import pytest
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from tests.bad_input import case, row
from tests.serving.exports import ROWS, examples, formula
from tfx_tpu_trainer.serving import (
    describe_saved_model,
    load_serving,
    read_warmup,
    warmup_requests,
    write_warmup,
)


def _logs(exported, batch_sizes, **options):
    return warmup_requests(
        describe_saved_model(exported), examples(ROWS), batch_sizes=batch_sizes, **options
    )


def test_one_request_for_each_batch_size_smallest_first(exported):
    logs = _logs(exported, [8, 1, 3, 8], model_name="taxi")
    requests = [log.predict_log.request for log in logs]
    assert [len(request.inputs["examples"].string_val) for request in requests] == [1, 3, 8]
    assert {request.model_spec.name for request in requests} == {"taxi"}
    assert {request.model_spec.signature_name for request in requests} == {"serving_default"}
    # Four rows, taken twice.
    assert list(requests[2].inputs["examples"].string_val) == examples(ROWS) * 2


def test_the_file_is_a_tfrecord_of_prediction_logs_where_servers_look(exported, tmp_path):
    path = tmp_path / "1"
    shutil.copytree(exported, path)
    written = _logs(exported, [1, 4])
    file = write_warmup(str(path), written)
    assert os.path.relpath(file, path) == "assets.extra/tf_serving_warmup_requests"
    assert os.listdir(path / "assets.extra") == ["tf_serving_warmup_requests"]
    records = [record.numpy() for record in tf.data.TFRecordDataset(file)]
    assert [prediction_log_pb2.PredictionLog.FromString(r) for r in records] == list(written)
    assert read_warmup(str(path)) == list(written)


def test_the_model_answers_them(exported):
    (log,) = _logs(exported, [4])
    inputs = log.predict_log.request.inputs
    answer = load_serving(exported).signatures["serving_default"](
        examples=tf.constant(tf.make_ndarray(inputs["examples"]))
    )
    assert answer["y"].numpy() == pytest.approx(formula(ROWS), rel=1e-6)


def test_signatures_that_only_one_metagraph_has_are_left_out(exported):
    host, tpu = describe_saved_model(exported)
    more = {**host.signatures, "predict_raw": host.signatures["serving_default"]}
    host = type(host)(host.tags, more, host.num_ops)
    both = warmup_requests([host], examples(ROWS))
    assert [log.predict_log.request.model_spec.signature_name for log in both] == [
        "serving_default",
        "predict_raw",
    ]
    assert len(warmup_requests([host, tpu], examples(ROWS))) == 1


def test_a_folder_without_them_has_none(exported):
    assert read_warmup(exported) == []


@pytest.mark.parametrize(
    "sizes",
    [
        case("exports", f"warm-up requests of {given}", *says, values=(sizes,))
        for given, sizes, *says in (
            ("0 rows", [0], "batch_sizes=[0]: each must be at least 1"),
            ("1,001 sizes", range(1, 1002), "more than 1000 requests", "name fewer batch sizes"),
        )
    ],
)
def test_mistakes_are_named(exported, sizes, refused):
    with refused(ValueError):
        _logs(exported, sizes)


@row(
    "exports",
    "warm-up requests made of no rows",
    "warm-up requests are made of real rows for a metagraph; one of them is missing",
)
def test_no_rows_are_an_error(exported, refused):
    with refused(ValueError):
        warmup_requests(describe_saved_model(exported), [])
