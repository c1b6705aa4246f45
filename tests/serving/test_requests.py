"""Tests a server's input: requests of raw rows, warm-up requests, and files, read as by TensorFlow Serving."""

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import descriptor_pb2, message_factory, text_format, wrappers_pb2
from tensorflow_serving.apis import prediction_log_pb2
from tensorflow_serving.config import model_server_config_pb2

from tests.bad_input import case, row
from tests.serving.exports import ROWS, examples, formula
from tests.tensorflow_settings import deterministic_ops
from tfx_tpu_trainer.serving import (
    RequestError,
    ServerBatching,
    SignatureDescription,
    TensorDescription,
    describe_saved_model,
    load_serving,
    read_warmup,
    warmup_requests,
    write_server_config,
    write_warmup,
)
from tfx_tpu_trainer.serving._requests import read_tfrecords, request_inputs, says_missing
from tfx_tpu_trainer.serving._server_config import TPU_BATCHING, batching_for_tpu


def _row(**features):
    example = tf.train.Example()
    for name, values in features.items():
        kind = {str: "bytes_list", float: "float_list", int: "int64_list"}[type(values[0])]
        encoded = [v.encode() if isinstance(v, str) else v for v in values]
        getattr(example.features.feature[name], kind).value.extend(encoded)
    return example.SerializeToString()


def _signature(**inputs):
    return SignatureDescription({k: TensorDescription(*v) for k, v in inputs.items()}, {})


RAW_ROWS = [
    _row(fare=[2.5], company=["a", "b"], n=[7]),
    _row(fare=[4.0], n=[8]),
    _row(company=["c"]),
]


def test_one_string_input_takes_the_examples():
    inputs = request_inputs(_signature(inputs=("string", (None,))), RAW_ROWS)
    assert inputs["inputs"].tolist() == RAW_ROWS


def test_one_string_input_with_the_name_of_a_feature_takes_that():
    inputs = request_inputs(_signature(company=("string", (None, None))), RAW_ROWS)
    assert inputs["company"].tolist() == [[b"a", b"b"], [b"", b""], [b"c", b""]]


def test_values_that_a_row_lacks_are_missing_ones():
    signature = _signature(
        fare=("float32", (None,)), n=("int64", (None, None)), company=("string", (None, None))
    )
    inputs = request_inputs(signature, RAW_ROWS)
    assert inputs["fare"].dtype == np.float32 and inputs["n"].dtype == np.int64
    np.testing.assert_array_equal(inputs["fare"], np.float32([2.5, 4.0, np.nan]))
    assert inputs["n"].tolist() == [[7], [8], [tf.int64.min]]


def test_a_feature_that_all_rows_lack_is_missing_in_all():
    inputs = request_inputs(
        _signature(fare=("float32", (None,)), tips=("float32", (None, None))), RAW_ROWS
    )
    np.testing.assert_array_equal(inputs["tips"], np.full([3, 1], np.nan, np.float32))


def test_a_default_takes_the_place_of_a_value_that_a_row_lacks():
    inputs = request_inputs(_signature(fare=("float32", (None,))), RAW_ROWS, defaults={"fare": 9.0})
    assert inputs["fare"].tolist() == [2.5, 4.0, 9.0]
    inputs = request_inputs(
        _signature(z=("float32", (None, 2))), RAW_ROWS, defaults={"z": [[1.0, 2.0]]}
    )
    assert inputs["z"].tolist() == [[1.0, 2.0]] * 3


def test_fixed_shapes_are_kept():
    inputs = request_inputs(
        _signature(z=("float32", (None, 2, 2))), [_row(z=[1.0, 2.0, 3.0, 4.0])] * 2
    )
    assert inputs["z"].tolist() == [[[1.0, 2.0], [3.0, 4.0]]] * 2


@pytest.mark.parametrize(
    "inputs",
    [
        case("exports", f"rows for a signature with {given}", *says, values=inputs)
        for given, inputs, *says in (
            (
                "other inputs",
                {"other": ("float32", (None,))},
                "none of its inputs (other) is a feature of the rows",
            ),
            (
                "numbers, where they hold text",
                {"company": ("float32", (None, None))},
                "its input 'company' (float32[?, ?]) doesn't take a row's values: could not convert",
            ),
            (
                "one value, where a row has none",
                {"n": ("int64", (None, 1))},
                "its input 'n' (int64[?, 1]) takes 1 values per row, but a row has 0",
            ),
            (
                "one value, where a row has two",
                {"company": ("string", (None,)), "n": ("int64", (None,))},
                "its input 'company' (string[?]) takes 1 values per row, but a row has 2",
            ),
            (
                "an input of unknown rank",
                {"fare": ("float32", None)},
                "its input 'fare' is float32<unknown rank>, to which rows can't be fitted",
            ),
        )
    ],
)
def test_rows_that_do_not_fit_are_named(inputs, refused):
    with refused(RequestError):
        request_inputs(_signature(**inputs), RAW_ROWS)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (_row(fare=[1.0], company=["a"], n=[0]), False),
        (_row(company=["a", ""]), True),
        (_row(fare=[float("nan")]), True),
        (_row(n=[tf.int64.min]), True),
        (_row(other=[""]), False),
    ],
    # A serialized row has no order, and each worker must give a test the same name.
    ids=["plain values", "empty string", "NaN", "least int64", "an empty string elsewhere"],
)
def test_values_that_stand_for_missing_ones_are_noticed(row, expected):
    signature = _signature(
        fare=("float32", (None,)), n=("int64", (None,)), company=("string", (None, None))
    )
    assert says_missing(signature, [RAW_ROWS[0], row]) is expected


def test_records_are_read_with_deterministic_ops_and_without_a_seed(tmp_path):
    path = str(tmp_path / "rows")
    with tf.io.TFRecordWriter(path) as writer:
        for row in (b"a", b"b", b"c"):
            writer.write(row)
    with deterministic_ops():
        assert read_tfrecords([path, path], limit=4) == [b"a", b"b", b"c", b"a"]


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


@pytest.fixture(scope="module")
def batching_parameters():
    """`tensorflow.serving.BatchingParameters`, whose class the wheel of the API lacks.

    The fields are those of servables/tensorflow/session_bundle_config.proto in tensorflow/serving.
    """
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="batching.proto",
        package="tensorflow.serving",
        syntax="proto3",
        dependency=[wrappers_pb2.DESCRIPTOR.name],
    )
    message = file.message_type.add(name="BatchingParameters")
    wrapped = (
        "max_batch_size",
        "batch_timeout_micros",
        "max_enqueued_batches",
        "num_batch_threads",
    )
    for number, name in enumerate(wrapped, start=1):
        message.field.add(
            name=name,
            number=number,
            type=field.TYPE_MESSAGE,
            type_name=".google.protobuf.Int64Value",
            label=field.LABEL_OPTIONAL,
        )
    message.field.add(
        name="allowed_batch_sizes", number=6, type=field.TYPE_INT64, label=field.LABEL_REPEATED
    )
    wrappers = descriptor_pb2.FileDescriptorProto()
    wrappers_pb2.DESCRIPTOR.CopyToProto(wrappers)
    return message_factory.GetMessages([wrappers, file])["tensorflow.serving.BatchingParameters"]


def _read(folder, name):
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return file.read()


def test_batching_parameters_there_and_back(tmp_path, batching_parameters):
    batching = ServerBatching(
        max_batch_size=32,
        batch_timeout_micros=700,
        num_batch_threads=3,
        max_enqueued_batches=9,
        allowed_batch_sizes=(4, 32),
    )
    folder = write_server_config(str(tmp_path), cpu=batching, tpu=TPU_BATCHING)
    read = text_format.Parse(_read(folder, "batching_parameters_cpu.txt"), batching_parameters())
    assert read.max_batch_size.value == 32
    assert read.batch_timeout_micros.value == 700
    assert read.num_batch_threads.value == 3
    assert read.max_enqueued_batches.value == 9
    assert list(read.allowed_batch_sizes) == [4, 32]
    read = text_format.Parse(_read(folder, "batching_parameters_tpu.txt"), batching_parameters())
    assert list(read.allowed_batch_sizes)[-1] == read.max_batch_size.value
    assert all(size % 8 == 0 for size in read.allowed_batch_sizes)


def test_a_cpu_host_pads_nothing_by_default(tmp_path, batching_parameters):
    folder = write_server_config(str(tmp_path))
    assert sorted(os.listdir(folder)) == ["batching_parameters_cpu.txt", "model.config"]
    assert os.listdir(tmp_path) == ["serving_config"]
    read = text_format.Parse(_read(folder, "batching_parameters_cpu.txt"), batching_parameters())
    assert list(read.allowed_batch_sizes) == []


def test_model_config_there_and_back(tmp_path):
    folder = write_server_config(str(tmp_path), model_name="taxi", base_path="/models/taxi")
    read = text_format.Parse(
        _read(folder, "model.config"), model_server_config_pb2.ModelServerConfig()
    )
    (model,) = read.model_config_list.config
    assert (model.name, model.base_path) == ("taxi", "/models/taxi")
    assert model.model_platform == "tensorflow"


def test_the_models_own_batch_sizes_are_a_tpu_hosts():
    assert batching_for_tpu(()) == TPU_BATCHING
    batching = batching_for_tpu((64, 16, 64))
    assert (batching.allowed_batch_sizes, batching.max_batch_size) == ((16, 64), 64)


@pytest.mark.parametrize(
    "changes",
    [
        case("exports", f"`ServerBatching({name}={value!r})`", says, values={name: value})
        for name, value, says in (
            ("max_batch_size", 0, "max_batch_size must be at least 1, got: 0"),
            ("batch_timeout_micros", -1, "batch_timeout_micros must be at least 0, got: -1"),
            (
                "allowed_batch_sizes",
                (8, 4),
                "increase and end with max_batch_size (16), got: [8, 4]",
            ),
            (
                "allowed_batch_sizes",
                (4, 8),
                "increase and end with max_batch_size (16), got: [4, 8]",
            ),
        )
    ],
)
def test_batching_that_no_server_takes_is_refused(changes, refused):
    with refused(ValueError):
        ServerBatching(
            **{"max_batch_size": 16, "batch_timeout_micros": 0, "num_batch_threads": 1, **changes}
        )
